-- One row per valid device activity, with what a roofline groups and sums.
-- kernel_id, name, category, cost_source, dtype, bound, side, roof_fraction, impossible   as in kernels
-- rank, device           as in kernels
-- step_id, seq, kind     its step, the step's number within the rank; NULL without one
-- dur_ns, busy_ns, prefill_ns, decode_ns   ns
-- flops, bytes           of the activity
-- prefill_flops, decode_flops   its FLOPs by phase: attention by query-key pairs, the vocabulary by requests, the rest by tokens
-- prefill_bytes, decode_bytes   its bytes by phase, as its time is divided
-- peak_flops, peak_bandwidth    FLOP/s and bytes/s of its device in the run's main type
WITH steps_of AS (
    SELECT
        step_id, kind, seq,
        prefill_tokens / nullif(prefill_tokens + decode_tokens, 0) AS by_tokens,
        prefill_reqs / nullif(prefill_reqs + decode_reqs, 0) AS by_requests,
        (prefill_qk - prefill_qq / 2) / nullif(prefill_qk - prefill_qq / 2 + decode_qk, 0) AS by_pairs
    FROM steps WHERE run_id = $run_id
),
placed AS (
    SELECT
        k.*, s.kind AS step_kind, s.seq,
        CASE
            WHEN s.kind = 'prefill' THEN 1 WHEN s.kind = 'decode' THEN 0 WHEN s.kind IS DISTINCT FROM 'mixed' THEN NULL
            WHEN k.busy_ns > 0 AND k.decode_ns = 0 THEN 1 WHEN k.busy_ns > 0 AND k.prefill_ns = 0 THEN 0
            WHEN k.category = 'attention' THEN s.by_pairs WHEN k.category IN ('logits', 'sampling') THEN s.by_requests ELSE s.by_tokens
        END AS work_share,
        CASE WHEN s.kind = 'prefill' THEN 1 WHEN s.kind = 'decode' THEN 0 WHEN s.kind = 'mixed' THEN k.prefill_ns / nullif(k.busy_ns, 0) END AS time_share
    FROM kernels AS k
    LEFT JOIN steps_of AS s ON s.step_id = k.step_id
    WHERE k.run_id = $run_id AND k.valid
)
SELECT
    p.kernel_id, p.rank, p.device, p.name, p.category, p.cost_source, p.dtype, p.bound, p.side, p.roof_fraction, p.impossible,
    p.step_id, p.seq, p.step_kind AS kind, p.dur_ns, p.busy_ns, p.prefill_ns, p.decode_ns, p.flops, p.bytes,
    p.flops * p.work_share AS prefill_flops, p.flops * (1 - p.work_share) AS decode_flops,
    p.bytes * p.time_share AS prefill_bytes, p.bytes * (1 - p.time_share) AS decode_bytes,
    d.peak_flops, d.peak_bandwidth
FROM placed AS p
LEFT JOIN devices AS d ON d.run_id = p.run_id AND d.rank = p.rank AND d.device = p.device
ORDER BY p.kernel_id
