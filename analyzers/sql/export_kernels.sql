-- One row per device activity whose times can be used and that starts in [$low, $high): the slices of the recording itself.
-- process   'rank R device D'
-- track     stream (thread on a CPU engine)
-- cat       the kind, as the torch profiler names it
-- nested    false: no slice lies in another one
-- start_ns, end_ns   ns
-- name      JSON text
-- args      JSON object: step (steps.seq), category, device, stream, phase, bound, roof_fraction, op; without what is not known
SELECT
    format('rank {} device {}', k.rank, k.device) AS process,
    coalesce(CASE WHEN k.kind = 'cpu_op' THEN 'thread ' ELSE 'stream ' END || k.stream, 'no stream') AS track,
    CASE k.kind WHEN 'memcpy' THEN 'gpu_memcpy' WHEN 'memset' THEN 'gpu_memset' WHEN 'cpu_op' THEN 'cpu_op' ELSE 'kernel' END AS cat, false AS nested,
    k.start_ns, k.start_ns + k.dur_ns AS end_ns, to_json(coalesce(k.name, '(no name)'))::VARCHAR AS name,
    json_merge_patch('{}', json_object(
        'device', k.device, 'stream', k.stream, 'step', s.seq, 'category', k.category,
        'phase', CASE WHEN k.prefill_ns > 0 AND k.decode_ns > 0 THEN 'both' WHEN k.prefill_ns > 0 THEN 'prefill' WHEN k.decode_ns > 0 THEN 'decode' END,
        'bound', k.bound, 'roof_fraction', CASE WHEN isfinite(k.roof_fraction) THEN round(k.roof_fraction, 4) END, 'op', k.op_name
    ))::VARCHAR AS args
FROM kernels AS k
LEFT JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id
WHERE k.run_id = $run_id AND k.valid AND k.dur_ns >= 0 AND k.start_ns >= $low AND k.start_ns < $high
ORDER BY k.start_ns, k.dur_ns DESC, k.kernel_id
