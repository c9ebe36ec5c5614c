-- One row per activity of one device that has busy time of its own, by start; clipped to the device's window.
-- start_ns, end_ns   ns
-- busy_ns            its part of the device's busy time, ns
-- step_id            NULL: of no step
-- prefill_ns, decode_ns   of busy_ns, ns; NULL: not split
SELECT
    greatest(k.start_ns, d.window_start_ns) AS start_ns, least(k.start_ns + k.dur_ns, d.window_end_ns) AS end_ns, k.busy_ns,
    k.step_id, k.prefill_ns, k.decode_ns
FROM kernels AS k
JOIN devices AS d ON d.run_id = k.run_id AND d.rank = k.rank AND d.device = k.device
WHERE
    k.run_id = $run_id AND k.rank = $rank AND k.device = $device AND k.valid AND k.busy_ns > 0
    AND least(k.start_ns + k.dur_ns, d.window_end_ns) > greatest(k.start_ns, d.window_start_ns)
ORDER BY 1, 2 DESC
