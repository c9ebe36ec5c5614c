-- Peaks of one device of a run, and what its recording left out of its name, vendor and memory.
UPDATE devices SET
    peak_flops = $peak_flops, peak_bandwidth = $peak_bandwidth, peak_source = $peak_source,
    ridge = $peak_flops / $peak_bandwidth,
    name = coalesce(name, $name), vendor = coalesce(vendor, $vendor), memory_bytes = coalesce(memory_bytes, $memory_bytes)
WHERE run_id = $run_id AND rank = $rank AND device = $device
