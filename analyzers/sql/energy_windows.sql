-- One row per device of the kernel timeline.
-- rank, device     keys
-- window_start_ns, window_end_ns   of the recorded window, ns
-- busy_ns, idle_ns, unrecorded_ns  its parts, ns
SELECT rank, device, window_start_ns, window_end_ns, busy_ns, idle_ns, unrecorded_ns
FROM devices
WHERE run_id = $run_id AND window_end_ns >= window_start_ns
ORDER BY rank, device
