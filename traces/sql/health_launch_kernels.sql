-- Check, one row per rank: which share of the other launches has any recorded activity? value: that share, 0..1. Launches
-- before the first and after the last recorded activity's launch are the head's and tail's; host functions run no kernel.
WITH recorded AS (
    SELECT rank, min(start_ns) AS first_ns, max(start_ns) AS last_ns
    FROM launches WHERE run_id = $run_id AND n_kernels > 0 GROUP BY rank
),
counted AS (
    SELECT
        r.rank,
        count(l.launch_id) AS n,
        count(l.launch_id) FILTER (WHERE l.n_kernels > 0) AS with_kernels
    FROM recorded AS r
    LEFT JOIN launches AS l
        ON l.run_id = $run_id AND l.rank = r.rank AND l.start_ns BETWEEN r.first_ns AND r.last_ns
        AND NOT l.is_graph AND NOT contains(coalesce(l.name, ''), 'HostFunc')
    GROUP BY r.rank
),
shared AS (SELECT *, CASE WHEN n > 0 THEN with_kernels / n END AS share FROM counted)
SELECT
    rank, 'launch_kernels' AS check_id,
    CASE WHEN share < 0.5 THEN 'withheld' WHEN share < 0.98 THEN 'warning' ELSE 'ok' END AS status,
    share AS value, 0.5::DOUBLE AS threshold,
    '["devices.idle_ns", "devices.busy_ns", "steps.idle_ns", "steps.busy_ns", "gaps"]' AS affects,
    CASE
        WHEN n = 0 THEN 'no kernel was launched by itself'
        WHEN share >= 0.98 THEN format('{} of {} launches have kernel records', with_kernels, n)
        ELSE format(
            '{} of {} launches ({:.1f} %) have no kernel record: records were dropped. Record fewer steps at a time, without '
            || 'stacks and shapes', n - with_kernels, n, 100 * (1 - share))
    END AS message
FROM shared
ORDER BY rank;
