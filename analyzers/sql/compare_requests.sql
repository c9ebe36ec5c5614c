-- One row per request that a pass answered, for a comparison. Times in ns, tokens.
-- pass            NULL: not our workload
-- session_id, turn, place   what pairs it with the same request of an equal plan; place counts requests of one turn
-- request_id      key
-- arrival_ns, finished_ns
-- ttft_ns, tpot_ns, e2e_ns   method §11; tpot per output token, which are the accepted ones
-- prompt_tokens, cached_tokens, output_tokens
-- ok              false: failed or aborted, in no latency
SELECT
    pass, coalesce(session_id, client_request_id, request_id) AS session_id, coalesce(turn, 0) AS turn,
    row_number() OVER (PARTITION BY pass, session_id, turn ORDER BY client_request_id, arrival_ns, request_id) - 1 AS place,
    request_id, arrival_ns, finished_ns,
    CASE WHEN client_request_id IS NOT NULL THEN first_token_ns - arrival_ns END AS ttft_ns,
    CASE WHEN output_tokens > 1 THEN (last_token_ns - first_token_ns) / (output_tokens - 1) END AS tpot_ns,
    last_token_ns - arrival_ns AS e2e_ns,
    prompt_tokens, cached_tokens, output_tokens, status IS NOT DISTINCT FROM 'ok' AS ok
FROM requests
WHERE run_id = $run_id AND pass IS DISTINCT FROM 'warmup'
ORDER BY pass, arrival_ns, request_id
