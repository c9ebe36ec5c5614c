-- One row per pass of the workload.
-- pass       NULL: not our workload
-- requests, ok, failed   counts
-- sessions   distinct sessions
-- prompt_tokens, cached_tokens, output_tokens   sums over requests with status 'ok', tokens
-- hit_ratio  cached / prompt tokens where both are known, 0..1
-- span_ns    first arrival to last end, ns
-- output_tokens_per_s    output tokens / span
-- preemptions   count
-- lateness_p99_ns   how late the client sent against its plan (open loop), ns
SELECT
    pass,
    count(*) AS requests,
    count(*) FILTER (WHERE status = 'ok') AS ok,
    count(*) FILTER (WHERE status IN ('error', 'aborted')) AS failed,
    count(DISTINCT session_id) AS sessions,
    sum(prompt_tokens) FILTER (WHERE status = 'ok')::BIGINT AS prompt_tokens,
    sum(cached_tokens) FILTER (WHERE status = 'ok')::BIGINT AS cached_tokens,
    sum(output_tokens) FILTER (WHERE status = 'ok')::BIGINT AS output_tokens,
    sum(cached_tokens) FILTER (WHERE status = 'ok' AND cached_tokens IS NOT NULL)
        / nullif(sum(prompt_tokens) FILTER (WHERE status = 'ok' AND cached_tokens IS NOT NULL), 0) AS hit_ratio,
    (max(finished_ns) - min(arrival_ns))::BIGINT AS span_ns,
    sum(output_tokens) FILTER (WHERE status = 'ok') * 1e9 / nullif(max(finished_ns) - min(arrival_ns), 0) AS output_tokens_per_s,
    sum(n_preemptions)::BIGINT AS preemptions,
    quantile_cont(arrival_ns - planned_ns, 0.99) AS lateness_p99_ns
FROM requests
WHERE run_id = $run_id
GROUP BY pass
ORDER BY min(arrival_ns)
