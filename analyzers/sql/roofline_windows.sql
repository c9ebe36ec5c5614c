-- What each phase of a step sees through a sliding window, one row per step with listed requests and window (tokens).
-- step_id, span    the window, tokens
-- *_kv             Σ cache entries that some of the request's new tokens see
-- *_pairs          Σ query-key pairs under the causal mask; the triangle as in analyzers/costs/attention.py: half a square for
--                  prompts, exact for decoded and verified tokens
WITH spans AS (SELECT unnest(CAST($spans AS BIGINT[])) AS span),
seen AS (
    SELECT
        r.step_id, s.span, r.phase IN ('prefill', 'recompute') AS is_prefill, r.new_tokens AS q,
        least(r.context_tokens, s.span + r.new_tokens - 1) AS kv,
        r.context_tokens - r.new_tokens AS before,
        greatest(least(s.span - (r.context_tokens - r.new_tokens), r.new_tokens), 0) AS growing
    FROM step_requests AS r
    CROSS JOIN spans AS s
    WHERE r.run_id = $run_id
)
SELECT
    step_id, span,
    coalesce(sum(kv) FILTER (WHERE is_prefill), 0)::DOUBLE AS prefill_kv,
    coalesce(sum(growing * (before + growing) - growing * growing / 2 + (q - growing) * span) FILTER (WHERE is_prefill), 0)::DOUBLE AS prefill_pairs,
    coalesce(sum(kv) FILTER (WHERE NOT is_prefill), 0)::DOUBLE AS decode_kv,
    coalesce(sum(growing * before + growing * (growing + 1) / 2 + (q - growing) * span) FILTER (WHERE NOT is_prefill), 0)::DOUBLE AS decode_pairs
FROM seen
GROUP BY step_id, span
ORDER BY step_id, span
