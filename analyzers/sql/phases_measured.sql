-- One row per step and category: measured device time of the kernels that serve both phases.
-- step_id, category
-- busy_ns   Σ of the kernels' parts of the device's busy time, ns
-- launches  kernels
-- Kernels that can serve one phase only (phase_of_kernel) belong to it whole and are left out in mixed steps.
SELECT k.step_id, k.category, sum(k.busy_ns)::BIGINT AS busy_ns, count(*) AS launches
FROM kernels AS k
JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id AND s.kind IN ('prefill', 'decode', 'mixed')
LEFT JOIN phase_of_kernel AS p ON p.kind = k.kind AND p.name = k.name AND p.op_name IS NOT DISTINCT FROM k.op_name
WHERE k.run_id = $run_id AND k.valid AND k.busy_ns > 0 AND (s.kind <> 'mixed' OR p.phase IS NULL)
GROUP BY k.step_id, k.category
ORDER BY k.step_id, k.category
