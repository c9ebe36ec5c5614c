-- One row per step kind.
-- kind, steps
-- busy_ns, prefill_ns, decode_ns, other_ns     device time and its parts, ns
-- split_low_ns, split_high_ns                  interval of prefill_ns, ns
-- prefill_tokens, recompute_tokens, decode_tokens, accepted_tokens
-- prefill_ns_per_token, decode_ns_per_token    device time per token computed in that phase, ns
-- interference_ns                              decoding requests' wait because a prefill rode along, ns of device time
SELECT
    kind, count(*) AS steps, sum(busy_ns)::BIGINT AS busy_ns, sum(prefill_ns)::BIGINT AS prefill_ns, sum(decode_ns)::BIGINT AS decode_ns,
    sum(other_ns)::BIGINT AS other_ns, sum(split_low_ns)::BIGINT AS split_low_ns, sum(split_high_ns)::BIGINT AS split_high_ns,
    sum(prefill_tokens)::BIGINT AS prefill_tokens, sum(recompute_tokens)::BIGINT AS recompute_tokens,
    sum(decode_tokens)::BIGINT AS decode_tokens, sum(accepted_tokens)::BIGINT AS accepted_tokens,
    sum(prefill_ns) / nullif(sum(prefill_tokens) FILTER (WHERE prefill_ns IS NOT NULL), 0) AS prefill_ns_per_token,
    sum(decode_ns) / nullif(sum(decode_tokens) FILTER (WHERE decode_ns IS NOT NULL), 0) AS decode_ns_per_token,
    sum(interference_ns)::BIGINT AS interference_ns
FROM steps
WHERE run_id = $run_id
GROUP BY kind
ORDER BY busy_ns DESC NULLS LAST, kind
