-- Check, one row per rank whose file says so: graphs were recorded as wholes. value: activities that stand for a whole graph.
-- Reads stage.sources.
WITH whole AS (
    SELECT DISTINCT rank FROM stage.sources WHERE role = 'trace' AND meta ->> 'graph_trace' = 'graph'
)
SELECT
    rank, 'graph_level' AS check_id, 'warning' AS status, count(*)::DOUBLE AS value, 0::DOUBLE AS threshold,
    '["kernels.category", "kernels.flops", "steps.bound", "steps.n_kernels"]' AS affects,
    format('{} graphs were recorded as one activity each: busy time is right, but nothing is known of the kernels inside. Record with '
        || 'nsys --cuda-graph-trace=node', count(*)) AS message
FROM kernels
JOIN whole USING (rank)
WHERE run_id = $run_id AND kind = 'kernel' AND starts_with(name, 'CUDA graph ')
GROUP BY rank
ORDER BY rank;
