-- idle_segment: one row per stretch of a gap of block idle_block in which nothing changes. Times in ns.
-- gap_id, start_ns, end_ns; late: the next activity was not launched yet; moment_id
-- class, range_start_ns, range_end_ns   of the innermost event that decides a cause
-- call_class; call_name, op_name, frame_name, scope_name: name_id of the innermost event of each kind; scope_class
CREATE OR REPLACE TEMP TABLE idle_segment AS
WITH part AS MATERIALIZED (
    SELECT p.gap_id, p.rank, l.lane, p.start_ns, p.late_ns, p.end_ns
    FROM idle_part AS p JOIN idle_lane AS l USING (rank, device, pid, tid)
    WHERE p.block = getvariable('idle_block')
),
moment AS MATERIALIZED (  -- those within the block, and the last one before it
    SELECT m.moment_id, m.rank, m.t
    FROM idle_moment AS m
    JOIN (
        SELECT s.rank, s.high_ns, coalesce(b.t, s.low_ns) AS from_ns
        FROM (SELECT rank, min(start_ns) AS low_ns, max(end_ns) AS high_ns FROM part GROUP BY rank) AS s
        ASOF LEFT JOIN idle_moment AS b ON b.rank = s.rank AND b.t <= s.low_ns
    ) AS w ON w.rank = m.rank AND m.t >= w.from_ns AND m.t < w.high_ns
),
point AS (
    SELECT gap_id, start_ns AS t FROM part
    UNION
    SELECT gap_id, late_ns FROM part WHERE late_ns < end_ns
    UNION
    SELECT p.gap_id, m.t FROM idle_mark AS m ASOF JOIN part AS p ON p.lane = m.lane AND p.start_ns <= m.t WHERE m.t < p.late_ns
    UNION
    SELECT p.gap_id, m.t
    FROM (SELECT l.lane, m.t FROM moment AS m JOIN (SELECT DISTINCT rank, lane FROM part) AS l USING (rank)) AS m
    ASOF JOIN part AS p ON p.lane = m.lane AND p.start_ns <= m.t
    WHERE m.t < p.end_ns
),
cut AS (
    SELECT
        p.gap_id, p.rank, p.lane, q.t AS start_ns, coalesce(lead(q.t) OVER (PARTITION BY p.gap_id ORDER BY q.t), p.end_ns) AS end_ns,
        q.t < p.late_ns AS late
    FROM point AS q
    JOIN part AS p USING (gap_id)
)
SELECT
    c.gap_id, c.start_ns, c.end_ns, c.late, m.moment_id, r.class, r.start_ns AS range_start_ns, r.end_ns AS range_end_ns, l.class AS call_class,
    l.name_id AS call_name, o.name_id AS op_name, f.name_id AS frame_name, s.name_id AS scope_name, s.class AS scope_class
FROM cut AS c
ASOF LEFT JOIN moment AS m ON m.rank = c.rank AND m.t <= c.start_ns
ASOF LEFT JOIN (SELECT * FROM idle_mark WHERE layer = 1) AS r ON r.lane = c.lane AND r.t <= c.start_ns
ASOF LEFT JOIN (SELECT * FROM idle_mark WHERE layer = 2) AS l ON l.lane = c.lane AND l.t <= c.start_ns
ASOF LEFT JOIN (SELECT * FROM idle_mark WHERE layer = 3) AS o ON o.lane = c.lane AND o.t <= c.start_ns
ASOF LEFT JOIN (SELECT * FROM idle_mark WHERE layer = 4) AS f ON f.lane = c.lane AND f.t <= c.start_ns
ASOF LEFT JOIN (SELECT * FROM idle_mark WHERE layer = 5) AS s ON s.lane = c.lane AND s.t <= c.start_ns
WHERE c.end_ns > c.start_ns;
