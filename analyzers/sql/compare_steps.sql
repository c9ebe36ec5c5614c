-- One row per recorded engine iteration that a health check does not spoil. Times in ns of device time, tokens.
-- step_id, rank, kind
-- start_ns          ns; where it begins
-- step_ns           its busy time
-- prefill_ns, decode_ns   its parts; NULL: not split
-- prefill_tokens, prefill_context_tokens, decode_reqs, decode_context_tokens   as in compare_ledger.sql
-- decode_tokens     tokens computed for decoding requests, drafted ones included
-- accepted_tokens   output tokens that came of it; NULL: not known
SELECT
    step_id, rank, kind, coalesce(device_start_ns, host_start_ns) AS start_ns, busy_ns AS step_ns, prefill_ns, decode_ns,
    coalesce(prefill_tokens, 0) AS prefill_tokens, coalesce(prefill_kv_tokens, 0) AS prefill_context_tokens,
    coalesce(decode_reqs, 0) AS decode_reqs, coalesce(decode_kv_tokens, 0) AS decode_context_tokens, decode_tokens, accepted_tokens
FROM steps
WHERE run_id = $run_id AND trusted IS DISTINCT FROM false AND busy_ns > 0
ORDER BY start_ns, step_id
