-- One row per kernel name of a run, the most busy time first.
-- name
-- category, op_name   of most of its activities
-- activities          count
-- busy_ns             its part of the busy time, overlap counted once, ns
SELECT coalesce(name, '?') AS name, mode(category) AS category, mode(op_name) AS op_name, count(*) AS activities, sum(busy_ns)::BIGINT AS busy_ns
FROM kernels
WHERE run_id = $run_id AND valid
GROUP BY 1
ORDER BY busy_ns DESC NULLS LAST, 1
