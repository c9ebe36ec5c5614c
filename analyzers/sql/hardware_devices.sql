-- One row per device of a run whose peaks are wanted.
-- rank, device
-- name, vendor, memory_bytes  as the recording has them, NULL where unknown
SELECT rank, device, name, vendor, memory_bytes
FROM devices
WHERE run_id = $run_id
ORDER BY rank, device
