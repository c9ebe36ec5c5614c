-- Check, one row per rank: which share of the steps has no device activity? value: that share, 0..1. Only where the run has
-- a recording of the device; steps of kind 'other' count where there are no others.
WITH traced AS (
    SELECT DISTINCT rank FROM sources WHERE run_id = $run_id AND role = 'trace'
),
chosen AS (
    SELECT s.rank, s.step_id, coalesce(s.n_kernels, 0) AS n_kernels
    FROM steps AS s
    JOIN traced USING (rank)
    WHERE s.run_id = $run_id
    QUALIFY s.kind <> 'other' OR bool_and(s.kind = 'other') OVER (PARTITION BY s.rank)
),
counted AS (
    SELECT
        rank, count(*) AS n, count(*) FILTER (WHERE n_kernels = 0) AS n_empty,
        list(step_id ORDER BY step_id) FILTER (WHERE n_kernels = 0) AS empty_ids
    FROM chosen
    GROUP BY rank
)
SELECT
    rank, 'steps_without_activity' AS check_id,
    CASE WHEN n_empty > n / 2 THEN 'withheld' WHEN n_empty > 0 THEN 'warning' ELSE 'ok' END AS status,
    n_empty / n AS value, 0.5::DOUBLE AS threshold,
    '["devices.idle_ns", "devices.busy_ns", "steps.idle_ns", "steps.busy_ns", "gaps"]' AS affects,
    CASE
        WHEN n_empty = 0 THEN format('all {} steps have device activities', n)
        ELSE format(
            '{} of {} steps have no device activity (step_id {}{}): their records are missing. Record fewer steps at a time',
            n_empty, n, array_to_string(empty_ids[1:5], ', '), CASE WHEN n_empty > 5 THEN ', …' ELSE '' END)
    END AS message
FROM counted
ORDER BY rank;
