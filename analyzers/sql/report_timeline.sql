-- One row per step of rank $rank in order, for a timeline and a roofline of steps.
-- seq, kind
-- start_ns        of its device span (else its host window), ns from the start of the window
-- dur_ns          of the same span, ns
-- busy_ns, idle_ns, unrecorded_ns            parts of the device span, ns
-- prefill_ns, decode_ns, other_ns            parts of busy_ns, ns; NULL: not split
-- interference_ns                            ns the decoding requests waited because a prefill rode along
-- prefill_reqs, decode_reqs, waiting         requests in the step by phase, and those waiting in the engine
-- prefill_tokens, decode_tokens              tokens computed
-- kv_tokens       tokens of context after the step, over its requests
-- kv_usage        share of KV blocks in use, 0..1; NULL without a step ledger
-- intensity       FLOP/byte
-- flops_per_s     FLOP over the part of busy_ns whose cost is known, FLOP/s
-- bound
WITH ledger AS (
    SELECT seq, min(waiting) AS waiting, min(kv_usage) AS kv_usage
    FROM ledger_steps
    WHERE run_id = $run_id
    GROUP BY seq
    HAVING count(*) = 1 -- several engine cores number alike: not told apart
)
SELECT
    s.seq, s.kind, coalesce(s.device_start_ns, s.host_start_ns) - r.window_start_ns AS start_ns,
    CASE WHEN s.device_start_ns IS NULL THEN s.host_end_ns - s.host_start_ns ELSE s.device_end_ns - s.device_start_ns END AS dur_ns,
    s.busy_ns, s.idle_ns, s.unrecorded_ns, s.prefill_ns, s.decode_ns, s.other_ns, s.interference_ns, s.prefill_reqs, s.decode_reqs,
    l.waiting, s.prefill_tokens, s.decode_tokens, CASE WHEN s.prefill_reqs = 0 THEN 0 ELSE s.prefill_kv_tokens END + CASE WHEN s.decode_reqs = 0 THEN 0 ELSE s.decode_kv_tokens END AS kv_tokens, l.kv_usage, s.intensity,
    s.flops * 1e9 / nullif(s.busy_ns * s.cost_coverage, 0) AS flops_per_s, s.bound
FROM steps AS s
JOIN runs AS r USING (run_id)
LEFT JOIN ledger AS l ON l.seq = s.ledger_seq
WHERE s.run_id = $run_id AND s.rank = $rank
ORDER BY start_ns, s.seq
