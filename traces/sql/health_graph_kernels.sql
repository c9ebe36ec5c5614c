-- Check, one row per rank: which share of the graph launches has any recorded activity? value: that share, 0..1; NULL where
-- no graph was launched. Launches before the first and after the last recorded activity's launch are the head's and tail's.
WITH recorded AS (
    SELECT rank, min(start_ns) AS first_ns, max(start_ns) AS last_ns
    FROM launches WHERE run_id = $run_id AND n_kernels > 0 GROUP BY rank
),
counted AS (
    SELECT l.rank, count(*) AS n, count(*) FILTER (WHERE l.n_kernels > 0) AS with_kernels
    FROM launches AS l
    LEFT JOIN recorded AS r USING (rank)
    WHERE l.run_id = $run_id AND l.is_graph AND (r.first_ns IS NULL OR l.start_ns BETWEEN r.first_ns AND r.last_ns)
    GROUP BY l.rank
),
shared AS (
    SELECT r.rank, coalesce(c.n, 0) AS n, c.with_kernels, c.with_kernels / c.n AS share
    FROM (SELECT DISTINCT rank FROM launches WHERE run_id = $run_id) AS r
    LEFT JOIN counted AS c USING (rank)
)
SELECT
    rank, 'graph_kernels' AS check_id,
    CASE WHEN share < 0.5 THEN 'withheld' WHEN share < 0.98 THEN 'warning' ELSE 'ok' END AS status,
    share AS value, 0.5::DOUBLE AS threshold,
    '["devices.idle_ns", "devices.busy_ns", "steps.idle_ns", "steps.busy_ns", "gaps"]' AS affects,
    CASE
        WHEN n = 0 THEN 'no graph was launched'
        WHEN share >= 0.98 THEN format('{} of {} graph launches have kernel records', with_kernels, n)
        ELSE format(
            'only {} of {} graph launches ({:.1f} %) have kernel records: the device looks idle while it runs graphs. Record with '
            || 'graph tracing (nsys: --cuda-graph-trace=node; torch profiler: a newer CUPTI or ROCm), or serve with --enforce-eager '
            || 'for the recording', with_kernels, n, 100 * share)
    END AS message
FROM shared
ORDER BY rank;
