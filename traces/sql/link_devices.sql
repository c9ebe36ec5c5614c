-- devices: one row per device with its window and what of it is busy and idle; nothing is known to be unrecorded yet
-- (step_idle.sql does the sums again once that is marked): busy + idle + unrecorded = window. Times in ns.
INSERT INTO devices (run_id, rank, device, window_start_ns, window_end_ns, busy_ns, idle_ns, unrecorded_ns)
SELECT
    getvariable('run_id'), w.rank, w.device, w.window_start_ns, w.window_end_ns, coalesce(k.busy_ns, 0), coalesce(g.idle_ns, 0), 0
FROM stage.device_window AS w
LEFT JOIN (
    SELECT rank, device, sum(busy_ns)::BIGINT AS busy_ns FROM kernels WHERE run_id = getvariable('run_id') AND valid GROUP BY ALL
) AS k USING (rank, device)
LEFT JOIN (
    SELECT rank, device, sum(dur_ns)::BIGINT AS idle_ns FROM gaps WHERE run_id = getvariable('run_id') GROUP BY ALL
) AS g USING (rank, device)
ORDER BY w.rank, w.device;
