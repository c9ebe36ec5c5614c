-- One row per value of a device's sensors at a time in [$low, $high).
-- process    'rank R device D'
-- track      what is counted
-- unit       of value
-- start_ns   ns
-- value      finite
WITH sensor AS (
    SELECT
        format('rank {} device {}', coalesce(rank, 0), device) AS process, ts_ns AS start_ns,
        unnest([
            {'track': 'power', 'unit': 'W', 'value': power_w}, {'track': 'SM clock', 'unit': 'MHz', 'value': sm_clock_mhz},
            {'track': 'SM active', 'unit': '%', 'value': 100 * coalesce(sm_active, sm_util)},
            {'track': 'memory used', 'unit': 'GB', 'value': memory_used_bytes / 1e9}
        ], recursive := true)
    FROM telemetry
    WHERE run_id = $run_id AND device IS NOT NULL AND ts_ns >= $low AND ts_ns < $high
)
SELECT process, track, unit, start_ns, value
FROM sensor
WHERE isfinite(value)
ORDER BY start_ns, process, track
