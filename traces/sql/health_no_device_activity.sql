-- Check, one row per rank: is there any usable device activity? value: usable activities. Columns of `health` from rank on.
WITH ranks AS (
    SELECT rank FROM sources WHERE run_id = $run_id AND role = 'trace' GROUP BY rank
),
counted AS (
    SELECT r.rank, coalesce(k.usable, 0) AS usable, coalesce(k.n, 0) AS n
    FROM ranks AS r
    LEFT JOIN (
        SELECT rank, count(*) FILTER (WHERE valid) AS usable, count(*) AS n FROM kernels WHERE run_id = $run_id GROUP BY rank
    ) AS k USING (rank)
),
host AS (
    SELECT rank, count(*) AS n_launches FROM launches WHERE run_id = $run_id GROUP BY rank
)
SELECT
    rank, 'device_activity' AS check_id,
    CASE WHEN usable > 0 THEN 'ok' ELSE 'withheld' END AS status,
    usable::DOUBLE AS value, 1::DOUBLE AS threshold,
    '["devices", "kernels", "gaps", "steps.busy_ns", "devices.busy_ns", "devices.idle_ns", "steps.idle_ns"]' AS affects,
    CASE
        WHEN usable > 0 THEN format('{} usable device activities', usable)
        WHEN c.n > 0 THEN format('none of the {} device activities has a usable time: record again', c.n)
        WHEN h.n_launches > 0 THEN format(
            'no device activity at all, though the host launched {} times: the profiler ran without device tracing, or its device '
            || 'buffers were never written. Check that no other profiler holds the device, and record again', h.n_launches)
        ELSE 'no device activity at all: is this the trace of a worker? A front end''s or scheduler''s trace holds none'
    END AS message
FROM counted AS c
LEFT JOIN host AS h USING (rank)
ORDER BY rank;
