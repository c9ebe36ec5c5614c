-- One row per request of $pass (any where $every), or with the id $id, the longest first; $slowest rows at most.
-- Needs request_part. Parts are those of requests_parts.sql, term 'e2e'; with prefix ttft_ those of the time to the first token.
-- ttft_ns, tpot_ns, e2e_ns   method §11, ns; e2e of a request that did not end well is its time to the end
-- itl_p50_ns, itl_p99_ns, itl_max_ns, itl_n   inter-token latencies, ns, and how many there are
WITH itl AS (
    SELECT
        request_id, quantile_cont(ns, 0.5) AS itl_p50_ns, quantile_cont(ns, 0.99) AS itl_p99_ns, max(ns) AS itl_max_ns, count(ns) AS itl_n
    FROM (
        SELECT request_id, ts_ns - lag(ts_ns) OVER (PARTITION BY request_id ORDER BY i) AS ns
        FROM tokens
        WHERE run_id = getvariable('run_id')
    )
    GROUP BY request_id
)
SELECT
    q.request_id, q.client_request_id, q.pass, q.session_id, q.turn, q.status, q.error, q.arrival_ns, q.prompt_tokens, q.cached_tokens,
    q.output_tokens, q.n_preemptions, q.first_token_ns - q.arrival_ns AS ttft_ns,
    CASE WHEN q.output_tokens > 1 THEN (q.last_token_ns - q.first_token_ns) / (q.output_tokens - 1) END AS tpot_ns, e.wall_ns AS e2e_ns,
    i.itl_p50_ns, i.itl_p99_ns, i.itl_max_ns, coalesce(i.itl_n, 0) AS itl_n, q.prefill_device_ns, q.decode_device_ns,
    e.* EXCLUDE (request_id, term, wall_ns),
    t.frontend_ns AS ttft_frontend_ns, t.queue_ns AS ttft_queue_ns, t.prefill_ns AS ttft_prefill_ns, t.interference_ns AS ttft_interference_ns,
    t.decode_ns AS ttft_decode_ns, t.preempted_ns AS ttft_preempted_ns, t.gap_ns AS ttft_gap_ns, t.stream_ns AS ttft_stream_ns
FROM requests AS q
LEFT JOIN request_part AS e ON e.request_id = q.request_id AND e.term = 'e2e'
LEFT JOIN request_part AS t ON t.request_id = q.request_id AND t.term = 'ttft'
LEFT JOIN itl AS i ON i.request_id = q.request_id
WHERE q.run_id = getvariable('run_id')
    AND CASE WHEN $id IS NULL THEN $every OR q.pass IS NOT DISTINCT FROM $pass ELSE $id IN (q.request_id, q.client_request_id) END
ORDER BY e.wall_ns DESC NULLS LAST, q.request_id
LIMIT $slowest
