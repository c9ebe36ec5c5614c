-- Check, one row per rank with files: were any cut off? value: files cut off.
WITH counted AS (
    SELECT rank, count(*) AS n, count(truncated) AS n_cut, any_value(name) FILTER (WHERE truncated IS NOT NULL) AS file, any_value(truncated) AS what
    FROM sources
    WHERE run_id = $run_id AND role = 'trace'
    GROUP BY rank
)
SELECT
    rank, 'truncated' AS check_id,
    CASE WHEN n_cut > 0 THEN 'warning' ELSE 'ok' END AS status,
    n_cut::DOUBLE AS value, 0::DOUBLE AS threshold,
    '["devices.window_end_ns", "steps", "kernels"]' AS affects,
    CASE
        WHEN n_cut = 0 THEN 'no file is cut off'
        ELSE format('{} is cut off: {}. Every complete event was kept; the last steps may lack activities. Let the engine finish writing '
            || 'before it is stopped', file, what)
    END AS message
FROM counted
ORDER BY rank;
