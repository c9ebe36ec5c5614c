-- One row per step, request and phase of steps with device time, for dividing it.
-- row_id         position in step_requests
-- step_id
-- side           'prefill' (recompute included) | 'decode' (verification included)
-- new_tokens     tokens of this phase
-- context_tokens tokens computed before them
-- sampled        rows that get logits: one per request, at its last token of the step, and all of a verification
SELECT
    r.rowid AS row_id, r.step_id, CASE WHEN r.phase IN ('prefill', 'recompute') THEN 'prefill' ELSE 'decode' END AS side,
    r.new_tokens, r.context_tokens - r.new_tokens AS context_tokens,
    CASE
        WHEN r.phase = 'verify' THEN r.new_tokens
        WHEN r.context_tokens = max(r.context_tokens) OVER (PARTITION BY r.step_id, r.request_id) THEN 1
        ELSE 0
    END AS sampled
FROM step_requests AS r
JOIN steps AS s ON s.run_id = r.run_id AND s.step_id = r.step_id
WHERE r.run_id = $run_id AND s.busy_ns > 0
ORDER BY r.rowid
