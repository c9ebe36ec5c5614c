-- stage.linked: one row per activity: the launch that caused it and the step that launched it (method §2), never by when
-- it ran. Fallbacks in order: attributed neighbours on the stream, then time; on a CPU engine time is exact.
CREATE TABLE stage.launch_step AS
WITH on_thread AS (
    SELECT l.launch_id, s.step_id
    FROM stage.launch AS l
    ASOF JOIN stage.step AS s ON s.rank = l.rank AND s.tid = l.tid AND s.pid = l.pid AND s.host_start_ns <= l.start_ns
    WHERE l.start_ns < s.host_end_ns
),
elsewhere AS (  -- a thread without labels of its own: the step of the rank at that time
    SELECT l.launch_id, s.step_id
    FROM stage.launch AS l
    ASOF JOIN stage.step AS s ON s.rank = l.rank AND s.host_start_ns <= l.start_ns
    WHERE l.start_ns < s.host_end_ns
        AND (l.pid, l.tid) NOT IN (SELECT (pid, tid) FROM stage.step WHERE pid IS NOT NULL AND tid IS NOT NULL)
)
SELECT * FROM on_thread
UNION ALL
SELECT * FROM elsewhere;

CREATE TABLE stage.launched AS
SELECT
    a.kernel_id, a.rank, a.device, a.stream, a.kind, a.start_ns, l.launch_id, l.is_graph, w.step_id,
    CASE WHEN w.step_id IS NULL THEN NULL WHEN l.is_graph THEN 'graph' ELSE 'launch' END AS step_link
FROM stage.activity AS a
LEFT JOIN stage.launch AS l ON l.src = a.src AND l.corr = a.corr
LEFT JOIN stage.launch_step AS w ON w.launch_id = l.launch_id;

CREATE TABLE stage.linked AS
WITH orphan AS (SELECT * FROM stage.launched WHERE launch_id IS NULL),
attributed AS (
    SELECT rank, device, stream, start_ns, step_id FROM stage.launched
    WHERE step_id IS NOT NULL AND kind <> 'cpu_op' AND EXISTS (SELECT 1 FROM orphan WHERE kind <> 'cpu_op')
),
neighboured AS (
    SELECT o.*, b.step_id AS before_id, f.step_id AS after_id
    FROM orphan AS o
    ASOF LEFT JOIN attributed AS b
        ON b.rank = o.rank AND b.device = o.device AND b.stream = o.stream AND b.start_ns <= o.start_ns
    ASOF LEFT JOIN attributed AS f
        ON f.rank = o.rank AND f.device = o.device AND f.stream = o.stream AND f.start_ns >= o.start_ns
),
timed AS (
    SELECT n.*, s.step_id AS time_id, s.host_end_ns AS time_end_ns
    FROM neighboured AS n
    ASOF LEFT JOIN stage.step AS s ON s.rank = n.rank AND s.host_start_ns <= n.start_ns
)
SELECT kernel_id, launch_id, is_graph, step_id, step_link  -- launched outside every step: no step
FROM stage.launched
WHERE launch_id IS NOT NULL
UNION ALL
SELECT
    kernel_id, NULL, NULL,
    CASE WHEN before_id = after_id THEN before_id WHEN start_ns < time_end_ns THEN time_id END,
    CASE WHEN before_id = after_id THEN 'stream_order' WHEN start_ns < time_end_ns THEN 'time' END
FROM timed;
