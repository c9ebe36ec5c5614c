-- One row per piece of a gap behind a launch whose activities were not recorded: rank, device, gap_id, start_ns, end_ns (ns).
-- The lost launch lies between those of the activities around the gap; before the first and after the last there is no bound.
WITH gap AS (
    SELECT rank, device, gap_id, start_ns, start_ns + dur_ns AS end_ns
    FROM gaps
    WHERE run_id = $run_id AND cause IS DISTINCT FROM 'unrecorded'
),
launched AS (
    SELECT k.rank, k.device, k.start_ns, k.start_ns + k.dur_ns AS end_ns, l.start_ns AS launch_ns
    FROM (SELECT * FROM kernels WHERE run_id = $run_id AND valid) AS k
    JOIN (SELECT launch_id, start_ns FROM launches WHERE run_id = $run_id) AS l USING (launch_id)
),
bounded AS (  -- the launches of the activities around each gap
    SELECT g.*, max(b.launch_ns) AS before_ns, min(a.launch_ns) AS after_ns
    FROM gap AS g
    LEFT JOIN launched AS b ON b.rank = g.rank AND b.device = g.device AND b.end_ns = g.start_ns
    LEFT JOIN launched AS a ON a.rank = g.rank AND a.device = g.device AND a.start_ns = g.end_ns
    GROUP BY ALL
),
open_ended AS (  -- no bound at the ends of the window; a gap beside an activity of unknown launch tells nothing
    SELECT
        b.rank, b.device, b.gap_id, b.start_ns, b.end_ns,
        CASE WHEN b.before_ns IS NULL AND b.start_ns = d.window_start_ns THEN -9223372036854775807 ELSE b.before_ns END AS low_ns,
        CASE WHEN b.after_ns IS NULL AND b.end_ns = d.window_end_ns THEN b.end_ns ELSE b.after_ns END AS high_ns
    FROM bounded AS b
    JOIN devices AS d ON d.run_id = $run_id AND d.rank = b.rank AND d.device = b.device
),
lost AS (
    SELECT rank, start_ns FROM launches
    WHERE run_id = $run_id AND n_kernels = 0 AND NOT contains(coalesce(name, ''), 'HostFunc')
        AND rank IN (SELECT rank FROM launched)
)
SELECT b.rank, b.device, b.gap_id, greatest(b.start_ns, l.start_ns) AS start_ns, b.end_ns
FROM open_ended AS b
ASOF JOIN lost AS l ON l.rank = b.rank AND b.low_ns < l.start_ns
WHERE l.start_ns < b.high_ns AND l.start_ns < b.end_ns;
