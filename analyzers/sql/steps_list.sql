-- One row per step in order.
-- rank, seq, kind, source, label
-- start_ns        host start, ns from the start of the window
-- host_ns         its host window, ns
-- device_ns       first activity to last activity's end, ns
-- busy_ns, idle_ns, unrecorded_ns   parts of that, ns
-- prefill_ns, decode_ns, other_ns   parts of busy, ns; split_low_ns..split_high_ns is the interval of prefill_ns
-- split_method, interference_ns
-- prefill_reqs, prefill_tokens, recompute_tokens, decode_reqs, decode_tokens, decode_kv_tokens, spec_tokens, accepted_tokens
-- graph_mode, n_kernels, n_launches, trusted
SELECT
    s.rank, s.seq, s.kind, s.source, s.label, s.host_start_ns - r.window_start_ns AS start_ns, s.host_end_ns - s.host_start_ns AS host_ns,
    s.device_end_ns - s.device_start_ns AS device_ns, s.busy_ns, s.idle_ns, s.unrecorded_ns, s.prefill_ns, s.decode_ns, s.other_ns,
    s.split_low_ns, s.split_high_ns, s.split_method, s.interference_ns, s.prefill_reqs, s.prefill_tokens, s.recompute_tokens,
    s.decode_reqs, s.decode_tokens, s.decode_kv_tokens, s.spec_tokens, s.accepted_tokens, s.graph_mode, s.n_kernels, s.n_launches, s.trusted
FROM steps AS s
JOIN runs AS r USING (run_id)
WHERE s.run_id = $run_id AND ($kind IS NULL OR s.kind = $kind)
ORDER BY s.rank, s.seq
