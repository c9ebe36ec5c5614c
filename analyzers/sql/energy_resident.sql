-- One row per device of the kernel timeline: the time in which a program is known to hold it, from its own work.
-- rank, device     keys, as devices has them
-- name             as the recording names it
-- start_ns, end_ns first to last: the recorded window, and the scheduler iterations of the run's ledger, ns
WITH ledger AS (
    SELECT min(sched_start_ns) AS start_ns, max(coalesce(result_end_ns, sched_end_ns, sched_start_ns)) AS end_ns
    FROM ledger_steps
    WHERE run_id = $run_id
)
SELECT
    d.rank, d.device, d.name, least(d.window_start_ns, l.start_ns) AS start_ns, greatest(d.window_end_ns, l.end_ns) AS end_ns
FROM devices AS d, ledger AS l
WHERE d.run_id = $run_id AND d.window_start_ns IS NOT NULL AND d.window_end_ns IS NOT NULL
ORDER BY d.rank, d.device
