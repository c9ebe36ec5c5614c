-- One row per kind and graph mode of steps that can be trusted: what their devices did, and waited for before each activity.
-- kind, graph_mode  as in steps
-- steps, kernels    how many
-- busy_ns           ns with activity
-- launch_ns         ns of idle in which the host launched, or a launch took its time
-- prepare_ns        ns in which the host prepared a step
-- overlap_ns        ns that would go away if scheduling, taking in the output and half of the launches around a graph ran
--                   beside the device
-- overlap_most_ns   the same with all of the launches and with preparing the next step
-- around_ns         ns of idle in which the host scheduled, took in the output, prepared a step or launched around a graph: what
--                   both are parts of, no more than the step is busy
WITH gap AS (
    SELECT
        step_after AS step_id,
        sum(dur_ns) FILTER (WHERE cause IN ('host_launch', 'launch_latency')) AS launch_ns,
        sum(dur_ns) FILTER (WHERE cause = 'host_prepare') AS prepare_ns,
        sum(dur_ns) FILTER (WHERE cause IN ('scheduler', 'sampling_output', 'sync')) AS between_ns
    FROM gaps
    WHERE run_id = $run_id
    GROUP BY step_after
)
SELECT
    s.kind, s.graph_mode, count(*) AS steps, coalesce(sum(s.n_kernels), 0)::BIGINT AS kernels, sum(s.busy_ns)::BIGINT AS busy_ns,
    coalesce(sum(g.launch_ns), 0)::BIGINT AS launch_ns, coalesce(sum(g.prepare_ns), 0)::BIGINT AS prepare_ns,
    coalesce(sum(least(s.busy_ns, coalesce(g.between_ns, 0) + CASE WHEN s.graph_mode IN ('full', 'piecewise') THEN coalesce(g.launch_ns, 0) // 2 ELSE 0 END)), 0)::BIGINT AS overlap_ns,
    coalesce(sum(least(s.busy_ns, coalesce(g.between_ns, 0) + coalesce(g.prepare_ns, 0) + CASE WHEN s.graph_mode IN ('full', 'piecewise') THEN coalesce(g.launch_ns, 0) ELSE 0 END)), 0)::BIGINT AS overlap_most_ns,
    coalesce(sum(coalesce(g.between_ns, 0) + coalesce(g.prepare_ns, 0) + CASE WHEN s.graph_mode IN ('full', 'piecewise') THEN coalesce(g.launch_ns, 0) ELSE 0 END), 0)::BIGINT AS around_ns
FROM steps AS s
LEFT JOIN gap AS g USING (step_id)
WHERE s.run_id = $run_id AND s.trusted IS NOT false AND s.busy_ns > 0
GROUP BY s.kind, s.graph_mode
ORDER BY busy_ns DESC, s.kind, s.graph_mode
