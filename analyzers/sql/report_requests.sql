-- One row per request of $pass (any where $every) in order of arrival, for a waterfall and distributions.
-- request_id, client_request_id, session_id, turn, status
-- arrival_ns, scheduled_ns, first_ns, last_ns, end_ns    ns from the first arrival of the pass
-- ttft_ns, tpot_ns    method §11, ns
-- prompt_tokens, cached_tokens, output_tokens
WITH chosen AS (
    SELECT * FROM requests WHERE run_id = $run_id AND ($every OR pass IS NOT DISTINCT FROM $pass) AND arrival_ns IS NOT NULL
)
SELECT
    request_id, client_request_id, session_id, turn, status, arrival_ns - min(arrival_ns) OVER () AS arrival_ns,
    scheduled_ns - min(arrival_ns) OVER () AS scheduled_ns, first_token_ns - min(arrival_ns) OVER () AS first_ns,
    last_token_ns - min(arrival_ns) OVER () AS last_ns, finished_ns - min(arrival_ns) OVER () AS end_ns,
    CASE WHEN status = 'ok' AND client_request_id IS NOT NULL THEN first_token_ns - chosen.arrival_ns END AS ttft_ns,
    CASE WHEN status = 'ok' AND output_tokens > 1 THEN (last_token_ns - first_token_ns) / (output_tokens - 1) END AS tpot_ns,
    prompt_tokens, cached_tokens, output_tokens
FROM chosen
ORDER BY chosen.arrival_ns, request_id
