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

CREATE TABLE stage.linked AS
WITH launched AS (
    SELECT
        a.kernel_id, a.rank, a.device, a.stream, a.kind, a.start_ns, a.dur_ns, a.valid,
        l.launch_id, l.is_graph, w.step_id,
        CASE WHEN w.step_id IS NULL THEN NULL WHEN l.is_graph THEN 'graph' ELSE 'launch' END AS step_link
    FROM stage.activity AS a
    LEFT JOIN stage.launch AS l ON l.src = a.src AND l.corr = a.corr
    LEFT JOIN stage.launch_step AS w ON w.launch_id = l.launch_id
),
neighboured AS (
    SELECT
        *,
        last_value(step_id IGNORE NULLS) OVER (
            PARTITION BY rank, device, stream ORDER BY start_ns, kernel_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_id,
        first_value(step_id IGNORE NULLS) OVER (
            PARTITION BY rank, device, stream ORDER BY start_ns, kernel_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS after_id
    FROM launched
),
timed AS (
    SELECT n.*, s.step_id AS time_id, s.host_end_ns AS time_end_ns
    FROM neighboured AS n
    ASOF LEFT JOIN stage.step AS s ON s.rank = n.rank AND s.host_start_ns <= n.start_ns
)
SELECT
    kernel_id, launch_id, is_graph,
    CASE
        WHEN step_id IS NOT NULL THEN step_id
        WHEN launch_id IS NOT NULL THEN NULL  -- launched outside every step
        WHEN kind <> 'cpu_op' AND before_id = after_id THEN before_id
        WHEN start_ns < time_end_ns THEN time_id
    END AS step_id,
    CASE
        WHEN step_id IS NOT NULL THEN step_link
        WHEN launch_id IS NOT NULL THEN NULL
        WHEN kind <> 'cpu_op' AND before_id = after_id THEN 'stream_order'
        WHEN start_ns < time_end_ns THEN 'time'
    END AS step_link
FROM timed;
