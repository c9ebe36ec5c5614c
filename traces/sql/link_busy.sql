-- stage.part where steps overlap on a device: each activity's own part of the device's busy time, overlap counted once. In ns.
-- Within a step the running maximum of the ends makes the parts disjoint; where steps overlap on a device, the time is the
-- earlier step's (rows without a step come last). So the parts of a device sum to the measure of the union exactly.
CREATE TABLE stage.interval AS
SELECT
    kernel_id, rank, device, step_order, e,
    greatest(s, coalesce(max(e) OVER (
        PARTITION BY rank, device, step_order ORDER BY s, e DESC, kernel_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), s)) AS s
FROM stage.timeline
WHERE kernel_id > 0;

CREATE TABLE stage.step_span AS
SELECT rank, device, step_order, min(s) AS first_ns, max(e) AS last_ns
FROM stage.interval
WHERE e > s
GROUP BY ALL;

CREATE TABLE stage.contested AS  -- parts that begin before an earlier step's last activity ended
SELECT i.*
FROM stage.interval AS i
JOIN (
    SELECT
        rank, device, step_order,
        max(last_ns) OVER (PARTITION BY rank, device ORDER BY step_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier_ns
    FROM stage.step_span
) AS m USING (rank, device, step_order)
WHERE i.e > i.s AND i.s < m.earlier_ns;

DELETE FROM stage.part;

INSERT INTO stage.part
WITH taken AS (
    SELECT c.kernel_id, greatest(c.s, o.s) AS s, least(c.e, o.e) AS e
    FROM stage.contested AS c
    JOIN stage.interval AS o ON o.rank = c.rank AND o.device = c.device AND o.step_order < c.step_order AND o.s < c.e AND o.e > c.s
    WHERE o.e > o.s
),
disjoint AS (
    SELECT
        kernel_id, e,
        greatest(s, coalesce(max(e) OVER (
            PARTITION BY kernel_id ORDER BY s, e DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), s)) AS s
    FROM taken
),
lost AS (SELECT kernel_id, sum(greatest(e - s, 0))::BIGINT AS ns FROM disjoint GROUP BY ALL)
SELECT i.kernel_id, greatest(i.e - i.s, 0) - coalesce(l.ns, 0)
FROM stage.interval AS i
LEFT JOIN lost AS l USING (kernel_id);
