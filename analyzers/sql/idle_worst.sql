-- One row per idle piece of $min_ns or longer, the longest first, at most $limit: what surrounds it and why it is there.
-- rank, device, gap_id, cause, detail   as in gaps
-- start_ns                              ns since the start of the device's window
-- dur_ns                                ns
-- before, after                         activities on both sides of the gap it lies in; NULL at the ends of the window
-- seq_before, seq_after                 steps.seq of the steps they belong to
-- kind                                  of the step after it
WITH worst AS (
    SELECT * FROM gaps
    WHERE run_id = $run_id AND cause IS DISTINCT FROM 'unrecorded' AND dur_ns >= $min_ns
    ORDER BY dur_ns DESC, gap_id
    LIMIT $limit
),
activity AS (
    SELECT rank, device, name, start_ns, start_ns + dur_ns AS end_ns FROM kernels WHERE run_id = $run_id AND valid AND dur_ns > 0
)
SELECT
    w.rank, w.device, w.gap_id, w.start_ns - d.window_start_ns AS start_ns, w.dur_ns, w.cause, b.name AS before, a.name AS after,
    sb.seq AS seq_before, sa.seq AS seq_after, sa.kind, w.detail
FROM worst AS w
JOIN devices AS d ON d.run_id = $run_id AND d.rank = w.rank AND d.device = w.device
ASOF LEFT JOIN activity AS b ON b.rank = w.rank AND b.device = w.device AND b.end_ns <= w.start_ns
ASOF LEFT JOIN activity AS a ON a.rank = w.rank AND a.device = w.device AND a.start_ns >= w.start_ns + w.dur_ns
LEFT JOIN steps AS sb ON sb.run_id = $run_id AND sb.step_id = w.step_before
LEFT JOIN steps AS sa ON sa.run_id = $run_id AND sa.step_id = w.step_after
ORDER BY w.dur_ns DESC, w.gap_id;
