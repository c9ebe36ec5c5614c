-- One row per count of an engine's scheduler at a step that was scheduled in [$low, $high).
-- process    'engine' with its process id
-- track      what is counted
-- unit       of value
-- start_ns   ns
-- value      finite
WITH scheduler AS (
    SELECT
        format('engine {}', coalesce(pid, 0)) AS process, sched_start_ns AS start_ns,
        unnest([
            {'track': 'requests running', 'unit': 'n', 'value': running::DOUBLE}, {'track': 'requests waiting', 'unit': 'n', 'value': waiting::DOUBLE},
            {'track': 'tokens of the step', 'unit': 'n', 'value': total_tokens::DOUBLE}, {'track': 'KV blocks in use', 'unit': '%', 'value': 100 * kv_usage}
        ], recursive := true)
    FROM ledger_steps
    WHERE run_id = $run_id AND sched_start_ns >= $low AND sched_start_ns < $high
)
SELECT process, track, unit, start_ns, value
FROM scheduler
WHERE isfinite(value)
ORDER BY start_ns, process, track
