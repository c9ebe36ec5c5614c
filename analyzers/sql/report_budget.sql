-- One row per part of the busy time of a run's devices; the rows sum to it.
-- phase     'prefill' | 'decode' | 'other' (steps without phases) | 'not split' | 'unattributed' (activities of no step)
-- bound     as in kernels; NULL: not known
-- n         activities with time in it
-- busy_ns   ns
WITH activity AS (
    SELECT
        k.bound, k.busy_ns, coalesce(k.prefill_ns, 0) AS prefill_ns, coalesce(k.decode_ns, 0) AS decode_ns,
        CASE WHEN k.step_id IS NULL THEN 'unattributed' WHEN k.prefill_ns IS NULL THEN 'not split' ELSE 'other' END AS rest
    FROM kernels AS k
    WHERE k.run_id = $run_id AND k.valid AND k.busy_ns > 0
),
part AS (
    SELECT 'prefill' AS phase, bound, prefill_ns AS busy_ns FROM activity WHERE prefill_ns > 0
    UNION ALL
    SELECT 'decode', bound, decode_ns FROM activity WHERE decode_ns > 0
    UNION ALL
    SELECT rest, bound, busy_ns - prefill_ns - decode_ns FROM activity WHERE busy_ns <> prefill_ns + decode_ns
)
SELECT phase, bound, count(*) AS n, sum(busy_ns)::BIGINT AS busy_ns
FROM part
GROUP BY phase, bound
ORDER BY phase, bound NULLS LAST
