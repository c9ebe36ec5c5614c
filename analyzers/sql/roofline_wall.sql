-- One row per device: wall time by phase, for utilization over wall time. A step's wall time is its device span; what it waits
-- counts for its phases as its busy time does.
-- rank, device, name, peak_source   as in devices
-- peak_flops, peak_bandwidth, ridge FLOP/s, bytes/s, FLOP/byte
-- window_ns                         ns recorded: busy and idle
-- prefill_wall_ns, decode_wall_ns   ns
WITH spans AS (
    SELECT
        rank,
        sum((busy_ns + coalesce(idle_ns, 0)) * (prefill_ns / nullif(busy_ns, 0))) AS prefill_wall_ns,
        sum((busy_ns + coalesce(idle_ns, 0)) * (decode_ns / nullif(busy_ns, 0))) AS decode_wall_ns
    FROM steps WHERE run_id = $run_id GROUP BY rank
)
SELECT
    d.rank, d.device, d.name, d.peak_source, d.peak_flops, d.peak_bandwidth, d.ridge, d.busy_ns + coalesce(d.idle_ns, 0) AS window_ns,
    s.prefill_wall_ns, s.decode_wall_ns
FROM devices AS d
LEFT JOIN spans AS s USING (rank)
WHERE d.run_id = $run_id
ORDER BY d.rank, d.device
