-- One row per device with telemetry: what its sensors say of themselves.
-- rank, device      keys, as telemetry has them
-- source            readers its samples came from, comma-separated
-- name              as the driver names the device
-- power_period_ns   ns between changes of the power reading, the slowest of its sources
-- from_driver       its power is what an NVIDIA driver calls average
SELECT
    rank, device, string_agg(DISTINCT source, ', ' ORDER BY source) AS source, max(name) AS name,
    max(power_period_ns)::BIGINT AS power_period_ns, bool_or(source IN ('nvml', 'nvidia-smi')) AS from_driver
FROM sensors
WHERE run_id = $run_id
GROUP BY rank, device
ORDER BY rank, device
