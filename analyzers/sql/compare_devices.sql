-- One row per device of a run, for what differs and for idle shares.
-- rank, device, name, vendor, memory_bytes, peak_flops, peak_bandwidth
-- window_ns, busy_ns     ns
-- sm_clock_mhz, mem_clock_mhz   MHz, median of the samples in its window; NULL: no telemetry
-- throttle               reasons seen in its window
SELECT
    d.rank, d.device, any_value(d.name) AS name, any_value(d.vendor) AS vendor, any_value(d.memory_bytes) AS memory_bytes,
    any_value(d.peak_flops) AS peak_flops, any_value(d.peak_bandwidth) AS peak_bandwidth,
    any_value(d.window_end_ns - d.window_start_ns)::BIGINT AS window_ns, any_value(d.busy_ns) AS busy_ns,
    median(t.sm_clock_mhz) AS sm_clock_mhz, median(t.mem_clock_mhz) AS mem_clock_mhz,
    string_agg(DISTINCT nullif(t.throttle, ''), '; ' ORDER BY nullif(t.throttle, '')) AS throttle
FROM devices AS d
LEFT JOIN telemetry AS t ON t.run_id = d.run_id AND t.rank = d.rank AND t.device = d.device
    AND t.ts_ns BETWEEN d.window_start_ns AND d.window_end_ns
WHERE d.run_id = $run_id
GROUP BY 1, 2
ORDER BY 1, 2
