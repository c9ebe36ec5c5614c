-- Kernels that graphs launched, in the order of each replay.
-- kernel_id, rank, step_id, name, dur_ns   as in kernels (ns)
-- graph_mode   of the step; NULL without one
-- tokens       of the step; 0 where not known
SELECT
    k.kernel_id, k.rank, k.step_id, k.name, k.dur_ns, s.graph_mode,
    coalesce(s.prefill_tokens, 0) + coalesce(s.decode_tokens, 0) AS tokens
FROM kernels AS k
LEFT JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id
WHERE k.run_id = $run_id AND k.valid AND k.in_graph
ORDER BY k.rank, k.device, k.step_id, k.start_ns, k.kernel_id
