-- One row per step that has phases and device time, with what each phase asked of it.
-- step_id, rank, kind
-- prefill_* and decode_*: reqs, tokens, kv (Σ context after the step), qq (Σ q²), qk (Σ q·k), sampled (rows that get logits)
-- NULL: not known. Every scheduled request gets a row of logits, verification one more per drafted token; where a
-- request's last recomputed chunk brings a new token, the row is decode's.
WITH listed AS (
    SELECT
        step_id,
        sum(new_tokens * new_tokens) FILTER (WHERE phase IN ('decode', 'verify'))::BIGINT AS decode_qq,
        count(DISTINCT request_id) - count(DISTINCT request_id) FILTER (WHERE phase IN ('decode', 'verify')) AS n_prefill_only
    FROM step_requests
    WHERE run_id = $run_id
    GROUP BY step_id
)
SELECT
    s.step_id, s.rank, s.kind,
    s.prefill_reqs, s.prefill_tokens, s.prefill_kv_tokens AS prefill_kv, s.prefill_qq, s.prefill_qk,
    coalesce(l.n_prefill_only, s.prefill_reqs) AS prefill_sampled,
    s.decode_reqs, s.decode_tokens, s.decode_kv_tokens AS decode_kv,
    coalesce(l.decode_qq, CASE WHEN s.decode_reqs > 0 THEN s.decode_tokens * s.decode_tokens // s.decode_reqs ELSE 0 END) AS decode_qq,
    s.decode_qk, s.decode_tokens AS decode_sampled
FROM steps AS s
LEFT JOIN listed AS l USING (step_id)
WHERE s.run_id = $run_id AND s.kind IN ('prefill', 'decode', 'mixed') AND s.busy_ns > 0
ORDER BY s.step_id
