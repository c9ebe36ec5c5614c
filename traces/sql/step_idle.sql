-- Idle and unrecorded time of every step, and of every device, from `gaps`. Times in ns.
-- A step's idle time is that of its device span, first activity to last, whoever ran before the gap; a gap lies wholly
-- inside a span or wholly outside it, so running totals up to both ends of the span give it.
CREATE OR REPLACE TEMP TABLE gap_total AS
SELECT
    rank, device, start_ns + dur_ns AS end_ns,
    sum(CASE WHEN cause = 'unrecorded' THEN 0 ELSE dur_ns END) OVER up_to AS idle_ns,
    sum(CASE WHEN cause = 'unrecorded' THEN dur_ns ELSE 0 END) OVER up_to AS unrecorded_ns
FROM gaps
WHERE run_id = getvariable('run_id')
WINDOW up_to AS (PARTITION BY rank, device ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW);

UPDATE steps AS s
SET idle_ns = i.idle_ns, unrecorded_ns = i.unrecorded_ns
FROM (
    SELECT
        d.step_id,
        sum(coalesce(b.idle_ns, 0) - coalesce(a.idle_ns, 0))::BIGINT AS idle_ns,
        sum(coalesce(b.unrecorded_ns, 0) - coalesce(a.unrecorded_ns, 0))::BIGINT AS unrecorded_ns
    FROM (
        SELECT step_id, rank, device, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
        FROM kernels
        WHERE run_id = getvariable('run_id') AND valid AND step_id IS NOT NULL
        GROUP BY ALL
    ) AS d
    ASOF LEFT JOIN gap_total AS a ON a.rank = d.rank AND a.device = d.device AND a.end_ns <= d.first_ns
    ASOF LEFT JOIN gap_total AS b ON b.rank = d.rank AND b.device = d.device AND b.end_ns <= d.last_ns
    GROUP BY ALL
) AS i
WHERE s.run_id = getvariable('run_id') AND s.step_id = i.step_id;

UPDATE devices AS d
SET idle_ns = coalesce(i.idle_ns, 0), unrecorded_ns = coalesce(i.unrecorded_ns, 0)
FROM (
    SELECT
        w.rank, w.device,
        sum(g.dur_ns) FILTER (WHERE g.cause IS DISTINCT FROM 'unrecorded')::BIGINT AS idle_ns,
        sum(g.dur_ns) FILTER (WHERE g.cause = 'unrecorded')::BIGINT AS unrecorded_ns
    FROM devices AS w
    LEFT JOIN gaps AS g ON g.run_id = w.run_id AND g.rank = w.rank AND g.device = w.device
    WHERE w.run_id = getvariable('run_id')
    GROUP BY ALL
) AS i
WHERE d.run_id = getvariable('run_id') AND d.rank = i.rank AND d.device = i.device;

DROP TABLE temp.gap_total;
