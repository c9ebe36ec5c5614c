-- One row per recorded step and group of its device activities.
-- step_id
-- category     of the group
-- place        place of the kernel's name in $names, from 1; 0: none of them
-- busy_ns      its part of the busy time, overlap counted once, ns
SELECT
    step_id, coalesce(category, 'other') AS category, coalesce(list_position($names::VARCHAR[], coalesce(name, '?')), 0) AS place,
    sum(busy_ns)::BIGINT AS busy_ns
FROM kernels
WHERE run_id = $run_id AND valid AND step_id IS NOT NULL
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
