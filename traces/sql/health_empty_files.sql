-- Check, one row per rank with files: did any file bring no event? value: such files.
WITH counted AS (
    SELECT rank, count(*) AS n, count(*) FILTER (WHERE events = 0) AS n_empty, min(name) FILTER (WHERE events = 0) AS file
    FROM sources
    WHERE run_id = $run_id AND role = 'trace'
    GROUP BY rank
)
SELECT
    rank, 'empty_files' AS check_id,
    CASE WHEN n_empty > 0 THEN 'warning' ELSE 'ok' END AS status,
    n_empty::DOUBLE AS value, 0::DOUBLE AS threshold,
    '["steps", "kernels"]' AS affects,
    CASE
        WHEN n_empty = 0 THEN format('every file ({}) holds events', n)
        ELSE format('{} of {} files hold no event ({}): a profiling session that wrote nothing. Only one profiler can hold the device; '
            || 'restart the engine before recording again', n_empty, n, file)
    END AS message
FROM counted
ORDER BY rank;
