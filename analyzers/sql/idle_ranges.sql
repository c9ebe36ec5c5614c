-- idle_range: one row per host event that overlaps a late part of a gap of block idle_block, on the thread that launches. Times in ns.
-- range_id, lane, layer, start_ns, end_ns, name_id, class. layer: 1 what decides a cause, 2 calls, 3 operators, 4 python frames, 5 ranges
CREATE OR REPLACE TEMP TABLE idle_range AS
WITH span AS MATERIALIZED (
    SELECT l.lane, p.start_ns, p.late_ns AS end_ns
    FROM idle_part AS p
    JOIN idle_lane AS l USING (rank, device, pid, tid)
    WHERE p.block = getvariable('idle_block') AND p.late_ns > p.start_ns AND l.first_ns IS NOT NULL
),
blocking AS (  -- copies that the calling thread waited for
    SELECT l.rank, l.pid, l.tid, l.start_ns
    FROM launches AS l
    JOIN kernels AS k ON k.run_id = l.run_id AND k.launch_id = l.launch_id
    WHERE l.run_id = getvariable('run_id') AND k.kind IN ('memcpy', 'memset') AND k.start_ns + k.dur_ns <= l.start_ns + l.dur_ns
        AND l.start_ns < (SELECT max(end_ns) FROM span) AND l.start_ns + l.dur_ns > (SELECT min(start_ns) FROM span)
),
event AS (
    SELECT
        l.lane, e.rank, e.pid, e.tid, e.start_ns, e.start_ns + e.dur_ns AS end_ns, n.name_id, n.kind, n.class, n.plain,
        n.name
    FROM host_events AS e
    JOIN idle_lane AS l ON l.rank = e.rank AND l.pid = coalesce(e.pid, -1) AND l.tid = coalesce(e.tid, -1)
    JOIN idle_name AS n ON n.kind = e.kind AND n.name = e.name
    WHERE e.run_id = getvariable('run_id') AND e.dur_ns > 0
        AND e.start_ns < (SELECT max(end_ns) FROM span) AND e.start_ns + e.dur_ns > (SELECT min(start_ns) FROM span)
),
touching AS (
    SELECT e.*
    FROM event AS e
    ASOF JOIN span AS s ON s.lane = e.lane AND s.start_ns < e.end_ns
    WHERE s.end_ns > e.start_ns
),
classed AS (
    SELECT
        t.*,
        CASE WHEN t.class = 'copy' THEN
            CASE WHEN NOT contains(t.name, 'Async') OR EXISTS (
                FROM blocking AS b
                WHERE b.rank = t.rank AND b.pid IS NOT DISTINCT FROM t.pid AND b.tid IS NOT DISTINCT FROM t.tid AND b.start_ns = t.start_ns
            ) THEN 'memcpy' ELSE 'launch' END
        ELSE t.class END AS meaning
    FROM touching AS t
),
layered AS (
    SELECT
        lane, start_ns, end_ns, name_id, meaning AS class,
        unnest(list_filter([
            CASE WHEN kind IN ('annotation', 'python') AND class IS NOT NULL THEN 1 END,
            CASE kind WHEN 'runtime' THEN 2 WHEN 'op' THEN 3 WHEN 'python' THEN CASE WHEN NOT plain THEN 4 END ELSE 5 END
        ], lambda layer: layer IS NOT NULL)) AS layer
    FROM classed
)
SELECT row_number() OVER (ORDER BY lane, layer, start_ns, end_ns DESC, name_id) AS range_id, * FROM layered;
