-- Check, one row per rank: which share of the device activities was launched outside the recording? value: that share, 0..1.
WITH counted AS (
    SELECT
        rank, count(*) AS n, count(*) FILTER (WHERE launch_id IS NULL) AS n_outside,
        count(*) FILTER (WHERE launch_id IS NULL AND step_id IS NULL) AS n_homeless
    FROM kernels
    WHERE run_id = $run_id AND kind <> 'cpu_op' AND valid
    GROUP BY rank
)
SELECT
    rank, 'launch_outside' AS check_id,
    CASE WHEN n_outside > 0.02 * n THEN 'warning' ELSE 'ok' END AS status,
    n_outside / n AS value, 0.02::DOUBLE AS threshold,
    '["kernels.step_id", "kernels.step_link", "gaps.cause"]' AS affects,
    CASE
        WHEN n_outside = n THEN 'the recording holds no launches: activities are given to steps by stream and time, and gaps have no host causes. '
            || 'Record the host too (torch profiler: CPU and CUDA activities)'
        WHEN n_outside > 0.02 * n THEN format(
            '{} of {} activities ({:.1f} %) were launched outside the recording, as in a slice of a longer one: they are given to steps by '
            || 'stream order and time ({} to none)', n_outside, n, 100 * n_outside / n, n_homeless)
        ELSE format('{} of {} activities have their launch in the recording', n - n_outside, n)
    END AS message
FROM counted
ORDER BY rank;
