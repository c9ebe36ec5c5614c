-- One row per kernel category of a run.
-- category   NULL: not analyzed
-- activities count
-- busy_ns    its part of the busy time of all devices, overlap counted once, ns
SELECT category, count(*) AS activities, sum(busy_ns)::BIGINT AS busy_ns
FROM kernels
WHERE run_id = $run_id AND valid
GROUP BY category
ORDER BY busy_ns DESC, category
