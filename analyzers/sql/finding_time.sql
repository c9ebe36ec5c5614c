-- One row: what the time of a run's devices went into, summed over them.
-- busy_ns       ns with activity
-- waited_ns     ns of idle while there was work
-- scheduler_ns  of these, ns between two steps in which the engine scheduled
SELECT
    coalesce((SELECT sum(busy_ns) FROM devices WHERE run_id = $run_id), 0)::BIGINT AS busy_ns,
    coalesce(sum(dur_ns) FILTER (WHERE cause IS NULL OR cause NOT IN ('no_work', 'tool_wait', 'frontend', 'unrecorded')), 0)::BIGINT AS waited_ns,
    coalesce(sum(dur_ns) FILTER (WHERE cause = 'scheduler'), 0)::BIGINT AS scheduler_ns
FROM gaps
WHERE run_id = $run_id
