-- Devices of a run with their peaks.
-- rank, device, name, peak_source   as in devices
-- peak_flops, peak_bandwidth        FLOP/s of the run's main type, bytes/s
SELECT rank, device, name, peak_flops, peak_bandwidth, peak_source FROM devices WHERE run_id = $run_id ORDER BY rank, device
