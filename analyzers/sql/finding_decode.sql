-- One row: the mean decode step of a run, over steps that can be trusted, do nothing else and draft nothing.
-- steps              how many
-- busy_ns            ns with activity, of a step
-- reqs               requests in it
-- context            tokens that each looks back on
-- latency_share, memory_share  shares of its busy time by what limits its kernels
-- total_ns           ns of all of them
SELECT
    count(*) AS steps, avg(busy_ns) AS busy_ns, avg(decode_reqs) AS reqs,
    sum(decode_kv_tokens) / nullif(sum(decode_reqs), 0) AS context,
    sum(coalesce(latency_ns, 0)) / nullif(sum(busy_ns), 0) AS latency_share,
    sum(coalesce(memory_ns, 0)) / nullif(sum(busy_ns), 0) AS memory_share, coalesce(sum(busy_ns), 0)::BIGINT AS total_ns
FROM steps
WHERE run_id = $run_id AND kind = 'decode' AND trusted IS NOT false AND busy_ns > 0 AND decode_reqs > 0
    AND decode_tokens = decode_reqs AND coalesce(side, 'memory') = 'memory'
