-- idle_part: one row per gap of idle_gap: what ended it, and until when that had not been launched (method §7.3, §7.4). Times in ns.
-- Until `late_ns` the launching thread decides; from there on the activity was launched and waited, for `after_cause`.
-- A call that launches kernels has launched when it returns (or when the kernel runs); one that copies may return only after
-- the copy. An activity without a launch record was launched before the next one of its stream that has one.
-- gap_id, rank, device, start_ns, end_ns, block; late_ns; work_ns: start of the launch; pid, tid of the thread; known: false
-- where the launch is not recorded and nothing dates it; after_cause, after_detail
CREATE OR REPLACE TEMP TABLE idle_part AS
WITH op_thread AS (  -- a CPU engine's rows carry the thread, not the process
    SELECT rank, tid, arg_max(pid, n) AS pid
    FROM (SELECT rank, pid, tid, count(*) AS n FROM host_events WHERE run_id = getvariable('run_id') AND kind = 'op' GROUP BY ALL)
    GROUP BY ALL
),
activity AS (
    SELECT * FROM kernels WHERE run_id = getvariable('run_id') AND valid AND dur_ns > 0
),
behind AS (
    SELECT g.gap_id, min_by(k.kernel_id, (k.launch_id IS NULL, k.kernel_id)) AS kernel_id
    FROM idle_gap AS g
    JOIN activity AS k ON k.rank = g.rank AND k.device = g.device AND k.start_ns = g.end_ns
    GROUP BY ALL
),
before AS (  -- the thread of a gap that nothing ends
    SELECT g.gap_id, min(k.kernel_id) AS kernel_id
    FROM idle_gap AS g
    JOIN activity AS k ON k.rank = g.rank AND k.device = g.device AND k.start_ns + k.dur_ns = g.start_ns
    WHERE g.gap_id NOT IN (SELECT gap_id FROM behind)
    GROUP BY ALL
),
started AS (
    SELECT
        g.gap_id, g.rank, g.device, g.start_ns, g.end_ns, g.block, b.kernel_id IS NOT NULL AS ended,
        k.kind, k.name, k.category, k.stream, k.in_graph, k.launch_id, l.pid, l.tid, l.start_ns AS call_ns, l.start_ns + l.dur_ns AS return_ns
    FROM idle_gap AS g
    LEFT JOIN behind AS b USING (gap_id)
    LEFT JOIN before AS f USING (gap_id)
    LEFT JOIN activity AS k ON k.kernel_id = coalesce(b.kernel_id, f.kernel_id)
    LEFT JOIN (SELECT * FROM launches WHERE run_id = getvariable('run_id')) AS l ON l.launch_id = k.launch_id
),
dated AS (
    SELECT
        s.gap_id, max(l.start_ns) AS by_ns
    FROM (SELECT * FROM started WHERE ended AND launch_id IS NULL AND kind <> 'cpu_op') AS s
    ASOF JOIN (SELECT * FROM activity WHERE launch_id IS NOT NULL) AS n
        ON n.rank = s.rank AND n.device = s.device AND n.stream = s.stream AND n.start_ns >= s.end_ns
    JOIN (SELECT * FROM launches WHERE run_id = getvariable('run_id')) AS l ON l.launch_id = n.launch_id
    GROUP BY ALL
),
parted AS (
    SELECT
        s.*, d.by_ns <= s.start_ns AS dated, s.kind = 'cpu_op' OR NOT s.ended OR s.launch_id IS NOT NULL OR coalesce(d.by_ns <= s.start_ns, false) AS known,
        CASE
            WHEN s.kind = 'cpu_op' OR NOT s.ended THEN s.end_ns
            WHEN d.by_ns <= s.start_ns THEN s.start_ns
            WHEN s.launch_id IS NULL THEN s.end_ns
            WHEN s.kind <> 'kernel' AND s.return_ns >= s.end_ns THEN greatest(s.start_ns, least(s.end_ns, s.call_ns))
            ELSE greatest(s.start_ns, least(s.end_ns, s.return_ns))
        END AS late_ns
    FROM started AS s
    LEFT JOIN dated AS d USING (gap_id)
)
SELECT
    p.gap_id, p.rank, p.device, p.start_ns, p.end_ns, p.block, p.late_ns,
    CASE WHEN NOT p.ended THEN NULL WHEN p.kind = 'cpu_op' THEN p.end_ns ELSE p.call_ns END AS work_ns,
    coalesce(CASE WHEN p.kind = 'cpu_op' THEN o.pid ELSE p.pid END, -1) AS pid,
    coalesce(CASE WHEN p.kind = 'cpu_op' THEN p.stream ELSE p.tid END, -1) AS tid,
    p.known,
    CASE
        WHEN p.late_ns >= p.end_ns THEN NULL
        WHEN p.end_ns - p.late_ns < getvariable('idle_latency_ns') THEN 'launch_latency'
        WHEN p.category = 'comm' THEN 'comm_wait'
        ELSE 'dependency'
    END AS after_cause,
    CASE WHEN p.late_ns < p.end_ns THEN
        CASE
            WHEN p.dated THEN format('next is {}, launched before the gap by the order of its stream', left(coalesce(p.name, 'an activity'), 120))
            ELSE format('next is {}, launched {:.1f} µs before it began', left(coalesce(p.name, 'an activity'), 120), (p.end_ns - p.call_ns) / 1e3)
        END || CASE WHEN p.in_graph THEN ', in a graph' ELSE '' END || format(', stream {}', coalesce(p.stream::VARCHAR, 'unknown'))
    END AS after_detail
FROM parted AS p
LEFT JOIN op_thread AS o ON o.rank = p.rank AND o.tid = p.stream;

-- idle_lane: one row per device and thread that launches for it; lane: number; first_ns, last_ns: what the thread recorded spans, in ns.
CREATE OR REPLACE TEMP TABLE idle_lane AS
WITH lane AS (SELECT DISTINCT rank, device, pid, tid FROM idle_part),
spanned AS (
    SELECT e.rank, coalesce(e.pid, -1) AS pid, coalesce(e.tid, -1) AS tid, min(e.start_ns) AS first_ns, max(e.start_ns + e.dur_ns) AS last_ns
    FROM host_events AS e
    WHERE e.run_id = getvariable('run_id')
    GROUP BY ALL
)
SELECT row_number() OVER (ORDER BY l.rank, l.device, l.pid, l.tid) AS lane, l.*, s.first_ns, s.last_ns
FROM lane AS l
LEFT JOIN spanned AS s ON s.rank = l.rank AND s.pid = l.pid AND s.tid = l.tid AND l.tid <> -1;
