-- One row per piece of one device's window without activity.
-- start_ns, end_ns   ns
-- cause              as in gaps; 'unknown' where none was decided
SELECT start_ns, start_ns + dur_ns AS end_ns, coalesce(cause, 'unknown') AS cause
FROM gaps
WHERE run_id = $run_id AND rank = $rank AND device = $device AND dur_ns > 0
