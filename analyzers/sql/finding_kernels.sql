-- One row per category of kernels that are large enough to reach a roof and do not; collectives and copies apart.
-- category
-- kernels        how many
-- busy_ns        ns of the devices' busy time
-- roof_fraction  share of the roof they reach, weighted by time
-- good_ns, usual_ns, best_ns   ns that would go away at the shares $good, $usual and $best of the roof
-- top_name       the name that takes most of it
-- dtypes         the data types they compute in; those not known are left out
WITH slow AS (
    SELECT category, name, dtype, busy_ns, roof_fraction
    FROM kernels
    WHERE run_id = $run_id AND valid AND bound = 'inefficient' AND roof_fraction > 0 AND busy_ns > 0 AND NOT coalesce(impossible, false)
        AND category NOT IN ('comm', 'memcpy', 'memset', 'other')
        AND (step_id IS NULL OR step_id NOT IN (SELECT step_id FROM steps WHERE run_id = $run_id AND trusted = false))
),
named AS (
    SELECT category, name, sum(busy_ns) AS busy_ns FROM slow GROUP BY category, name
)
SELECT
    s.category, count(*) AS kernels, sum(s.busy_ns)::BIGINT AS busy_ns, sum(s.busy_ns * s.roof_fraction) / sum(s.busy_ns) AS roof_fraction,
    sum(s.busy_ns * greatest(0, 1 - s.roof_fraction / $good)) AS good_ns, sum(s.busy_ns * greatest(0, 1 - s.roof_fraction / $usual)) AS usual_ns,
    sum(s.busy_ns * greatest(0, 1 - s.roof_fraction / $best)) AS best_ns,
    (SELECT arg_max(n.name, n.busy_ns) FROM named AS n WHERE n.category = s.category) AS top_name,
    coalesce(list_sort(list(DISTINCT s.dtype) FILTER (WHERE s.dtype IS NOT NULL)), []) AS dtypes
FROM slow AS s
GROUP BY s.category
ORDER BY busy_ns DESC, s.category
