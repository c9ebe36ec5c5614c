-- One row per piece of a gap in which the device waited for work outside the recording: rank, device, gap_id, start_ns, end_ns
-- (ns). The next activity had been launched a millisecond or more before it ran, and it is the first one of its stream behind a
-- wait for an event that no recorded call explains, as in a slice of a longer trace (method §7.1). Reads host_mark.
WITH recorded AS (
    SELECT rank, pid, min(start_ns) AS first_ns FROM host_mark WHERE contains(name, 'EventRecord') GROUP BY ALL
),
wait AS (
    SELECT m.rank, m.pid, m.start_ns
    FROM host_mark AS m
    LEFT JOIN recorded AS r ON r.rank = m.rank AND r.pid IS NOT DISTINCT FROM m.pid
    WHERE contains(m.name, 'StreamWaitEvent') AND (r.first_ns IS NULL OR m.start_ns < r.first_ns)
),
late AS (
    SELECT g.rank, g.device, g.gap_id, g.start_ns, g.end_ns, k.kernel_id, k.stream, l.pid, l.start_ns AS launch_ns
    FROM (
        SELECT rank, device, gap_id, start_ns, start_ns + dur_ns AS end_ns
        FROM gaps
        WHERE run_id = $run_id AND dur_ns >= 1000000 AND cause IS DISTINCT FROM 'unrecorded'
    ) AS g
    JOIN (SELECT * FROM kernels WHERE run_id = $run_id AND valid) AS k
        ON k.rank = g.rank AND k.device = g.device AND k.start_ns = g.end_ns
    JOIN (SELECT * FROM launches WHERE run_id = $run_id) AS l ON l.launch_id = k.launch_id
    WHERE k.start_ns - l.start_ns >= 1000000
),
behind AS (
    SELECT t.*, w.start_ns AS wait_ns
    FROM late AS t
    ASOF JOIN wait AS w ON w.rank = t.rank AND w.pid = t.pid AND w.start_ns <= t.launch_ns
),
overtaken AS (  -- another activity of the stream was launched behind the wait before
    SELECT DISTINCT b.kernel_id
    FROM behind AS b
    JOIN launches AS l ON l.run_id = $run_id AND l.rank = b.rank AND l.start_ns > b.wait_ns AND l.start_ns < b.launch_ns
    JOIN kernels AS k ON k.run_id = $run_id AND k.launch_id = l.launch_id
    WHERE k.device = b.device AND k.stream IS NOT DISTINCT FROM b.stream
)
SELECT rank, device, gap_id, min(greatest(start_ns, launch_ns)) AS start_ns, end_ns
FROM behind
WHERE kernel_id NOT IN (SELECT kernel_id FROM overtaken)
GROUP BY ALL;
