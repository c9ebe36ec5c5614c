-- Check, one row per rank: does any activity start before the call that launched it? value: ns by which the clocks are apart
-- at least. Such activities wait 0 ns for their launch; no negative gap is made of them.
WITH early AS (
    SELECT k.rank, count(*) AS n, count(*) FILTER (WHERE k.start_ns < l.start_ns) AS n_early, max(l.start_ns - k.start_ns) AS worst_ns
    FROM (SELECT rank, launch_id, start_ns FROM kernels WHERE run_id = $run_id AND valid) AS k
    JOIN (SELECT launch_id, start_ns FROM launches WHERE run_id = $run_id) AS l USING (launch_id)
    GROUP BY k.rank
)
SELECT
    rank, 'launch_skew' AS check_id,
    CASE WHEN worst_ns > 1000 THEN 'warning' ELSE 'ok' END AS status,
    greatest(worst_ns, 0)::DOUBLE AS value, 1000::DOUBLE AS threshold,
    '["gaps.cause"]' AS affects,
    CASE
        WHEN worst_ns > 1000 THEN format(
            '{} of {} activities start before their launch, by up to {:.1f} µs: the clocks of host and device are apart by at least '
            || 'that. Causes of gaps shorter than it are not to be believed', n_early, n, worst_ns / 1e3)
        ELSE 'every activity starts after its launch'
    END AS message
FROM early
ORDER BY rank;
