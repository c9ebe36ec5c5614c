-- idle_moment: one row per moment at which the engine's state changes for a rank, with the state from there on. Times in ns.
-- moment_id, rank, t
-- engine_id         stretch of idle_engine; 0: the engine has work, or nobody knows
-- phase, phase_ns   what the engine core did last by the ledger, and since when: 'schedule', 'handed' (scheduled, with the worker),
--                   'output' (taking in the result), 'between'; NULL: no ledger, or several cores
-- running, waiting  requests when it last scheduled
-- step_ns, forward_ns, launched_ns   last start of an iteration's range, of the model in it, of a step's first launch (CPU: operator)
-- host_ns           last start of a step's host window
-- in_step           in a step's host window, and its last work is still to come
CREATE OR REPLACE TEMP TABLE idle_moment AS
WITH ranks AS (SELECT DISTINCT rank FROM idle_part),
ledger AS (
    SELECT * FROM ledger_steps
    WHERE run_id = getvariable('run_id') AND (SELECT clock FROM runs WHERE run_id = getvariable('run_id')) = 'epoch'
        AND (SELECT count(DISTINCT pid) FROM ledger_steps WHERE run_id = getvariable('run_id')) <= 1
),
phase AS (
    SELECT sched_start_ns AS t, seq, 1 AS ord, 'schedule' AS phase, running, waiting FROM ledger
    UNION ALL SELECT sched_end_ns, seq, 2, 'handed', running, waiting FROM ledger
    UNION ALL SELECT result_start_ns, seq, 3, 'output', NULL, NULL FROM ledger
    UNION ALL SELECT result_end_ns, seq, 4, 'between', NULL, NULL FROM ledger
    UNION ALL  -- before the first step
    SELECT least(min(l.sched_start_ns), min(d.window_start_ns)) - 1, -1, 0, 'between', NULL, NULL
    FROM ledger AS l, devices AS d WHERE d.run_id = getvariable('run_id') HAVING count(*) > 0
),
range AS (
    SELECT e.rank, e.start_ns AS t, n.class
    FROM host_events AS e
    JOIN (SELECT DISTINCT rank, pid, tid FROM idle_lane) AS l ON l.rank = e.rank AND l.pid = coalesce(e.pid, -1) AND l.tid = coalesce(e.tid, -1)
    JOIN (SELECT * FROM idle_name WHERE class IN ('label', 'step', 'forward')) AS n ON n.kind = e.kind AND n.name = e.name
    WHERE e.run_id = getvariable('run_id') AND e.kind IN ('annotation', 'python') AND e.dur_ns > 0
),
work AS (
    SELECT s.rank, s.source, s.host_start_ns, coalesce(l.first_ns, s.device_start_ns) AS first_ns, coalesce(l.last_ns, s.device_end_ns) AS last_ns
    FROM steps AS s
    LEFT JOIN (
        SELECT step_id, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
        FROM launches WHERE run_id = getvariable('run_id') AND step_id IS NOT NULL GROUP BY step_id
    ) AS l USING (step_id)
    WHERE s.run_id = getvariable('run_id') AND s.host_start_ns IS NOT NULL
),
change AS (
    SELECT rank, start_ns AS t, 0 AS ord, 0 AS seq, engine_id, NULL AS phase, NULL AS running, NULL AS waiting, NULL AS step_ns, NULL AS forward_ns, NULL AS launched_ns, NULL AS host_ns, NULL AS in_step
    FROM idle_engine, ranks
    UNION ALL BY NAME SELECT rank, end_ns AS t, -1 AS ord, 0 AS seq, 0 AS engine_id FROM idle_engine, ranks
    UNION ALL BY NAME SELECT rank, t, ord, seq, phase, running, waiting FROM phase, ranks WHERE t IS NOT NULL
    UNION ALL BY NAME SELECT rank, t, 5 AS ord, (class = 'forward')::INTEGER AS seq, CASE WHEN class <> 'forward' THEN t END AS step_ns, CASE class WHEN 'forward' THEN t END AS forward_ns FROM range
    UNION ALL BY NAME SELECT rank, first_ns AS t, 5 AS ord, 2 AS seq, first_ns AS launched_ns FROM work WHERE first_ns IS NOT NULL
    UNION ALL BY NAME SELECT rank, host_start_ns AS t, 6 AS ord, 0 AS seq, host_start_ns AS host_ns, source IN ('label', 'ledger') AND last_ns > host_start_ns AS in_step FROM work
    UNION ALL BY NAME SELECT rank, last_ns AS t, 5 AS ord, 3 AS seq, false AS in_step FROM work WHERE last_ns > host_start_ns
)
SELECT
    row_number() OVER (ORDER BY rank, t, ord, seq) AS moment_id, rank, t,
    coalesce(last_value(engine_id IGNORE NULLS) OVER so_far, 0) AS engine_id,
    last_value(phase IGNORE NULLS) OVER so_far AS phase,
    last_value(CASE WHEN phase IS NOT NULL THEN t END IGNORE NULLS) OVER so_far AS phase_ns,
    last_value(running IGNORE NULLS) OVER so_far AS running,
    last_value(waiting IGNORE NULLS) OVER so_far AS waiting,
    last_value(step_ns IGNORE NULLS) OVER so_far AS step_ns,
    last_value(forward_ns IGNORE NULLS) OVER so_far AS forward_ns,
    last_value(launched_ns IGNORE NULLS) OVER so_far AS launched_ns,
    last_value(host_ns IGNORE NULLS) OVER so_far AS host_ns,
    coalesce(last_value(in_step IGNORE NULLS) OVER so_far, false) AS in_step
FROM change
WINDOW so_far AS (PARTITION BY rank ORDER BY t, ord, seq ROWS UNBOUNDED PRECEDING)
QUALIFY row_number() OVER (PARTITION BY rank, t ORDER BY ord DESC, seq DESC) = 1;  -- the last of several at one time
