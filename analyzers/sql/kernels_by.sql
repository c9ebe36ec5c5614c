-- One row per group of device activities, largest first. {group} is one of a fixed list of expressions.
-- name           the group
-- category       its kernel category; NULL where the group spans several
-- activities     count
-- busy_ns        its part of the busy time, overlap counted once, ns
-- share          of the busy time of all devices, 0..1
-- prefill_ns, decode_ns   parts of busy_ns, ns
-- p50_ns, p99_ns          percentiles of one activity's duration, ns
SELECT
    {group} AS name, CASE WHEN min(k.category) = max(k.category) THEN min(k.category) END AS category, count(*) AS activities,
    sum(k.busy_ns)::BIGINT AS busy_ns, sum(k.busy_ns) / nullif(sum(sum(k.busy_ns)) OVER (), 0) AS share,
    sum(k.prefill_ns)::BIGINT AS prefill_ns, sum(k.decode_ns)::BIGINT AS decode_ns,
    quantile_cont(k.dur_ns, 0.5) AS p50_ns, quantile_cont(k.dur_ns, 0.99) AS p99_ns
FROM kernels AS k
LEFT JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id
WHERE k.run_id = $run_id AND k.valid
GROUP BY 1
ORDER BY busy_ns DESC, name
