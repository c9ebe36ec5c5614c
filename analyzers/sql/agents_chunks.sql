-- One row per chunk of a prompt that was computed in a recorded step, first time only: a preemption's recompute is no piece.
-- request_id
-- start_token   first token of the chunk
-- tokens        tokens of it
-- device_ns     ns of device time
-- attention     share of the step's prefill time that attention took, 0..1; it grows with a token's place, the rest does not
-- energy_j      J
WITH share AS (
    SELECT step_id, sum(prefill_ns) FILTER (WHERE category = 'attention') / nullif(sum(prefill_ns), 0) AS attention
    FROM kernels
    WHERE run_id = $run_id AND valid AND prefill_ns > 0
    GROUP BY step_id
)
SELECT
    r.request_id, r.context_tokens - r.new_tokens AS start_token, r.new_tokens AS tokens, r.device_ns,
    coalesce(s.attention, 0) AS attention, r.energy_j
FROM step_requests AS r
LEFT JOIN share AS s USING (step_id)
WHERE r.run_id = $run_id AND r.phase = 'prefill' AND r.device_ns IS NOT NULL AND r.new_tokens > 0
    AND r.context_tokens >= r.new_tokens
ORDER BY r.request_id, start_token
