-- idle_engine: one row per stretch in which the engine has no request, waiting or running (method §7.2). Times in ns.
-- Empty where no request is known, or where the run's clock is not theirs. A request is in the engine from where it is queued
-- (where no ledger says that: from where it was sent) to the result of its last step.
-- engine_id, start_ns, end_ns; cause 'frontend' | 'tool_wait' | 'no_work'; detail: the state of requests and sessions in words
CREATE OR REPLACE TEMP TABLE idle_engine AS
WITH horizon AS (
    SELECT min(window_start_ns) AS low_ns, max(window_end_ns) AS high_ns FROM devices WHERE run_id = getvariable('run_id')
),
result AS (
    SELECT r.engine_request_id AS request_id, max(s.result_end_ns) AS last_ns
    FROM ledger_rows AS r
    JOIN ledger_steps AS s ON s.run_id = r.run_id AND s.pid = r.pid AND s.seq = r.seq
    WHERE r.run_id = getvariable('run_id')
    GROUP BY ALL
),
request AS (
    SELECT
        q.pass, q.session_id, q.arrival_ns, q.queued_ns, q.finished_ns, q.tool_ns,
        CASE
            WHEN q.status = 'ok' THEN coalesce(r.last_ns, q.finished_ns)
            ELSE greatest(coalesce(r.last_ns, q.finished_ns), q.finished_ns)  -- aborted while it waited: no result says so
        END AS left_ns,
        count(q.queued_ns) OVER () > 0 AS ledger
    FROM requests AS q
    LEFT JOIN result AS r USING (request_id)
    WHERE q.run_id = getvariable('run_id') AND q.arrival_ns IS NOT NULL
        AND (SELECT clock FROM runs WHERE run_id = getvariable('run_id')) = 'epoch'
),
stretch AS (
    SELECT 'engine' AS what, coalesce(queued_ns, arrival_ns) AS start_ns, left_ns AS end_ns FROM request WHERE queued_ns IS NOT NULL OR NOT ledger
    UNION ALL
    SELECT 'frontend', arrival_ns, coalesce(queued_ns, finished_ns) FROM request WHERE ledger
    UNION ALL
    SELECT 'tool', finished_ns, finished_ns + tool_ns FROM request WHERE tool_ns > 0
    UNION ALL
    SELECT 'answer', left_ns, finished_ns FROM request WHERE finished_ns > left_ns
    UNION ALL
    SELECT 'open', min(arrival_ns), CASE WHEN count(finished_ns) = count(*) THEN max(finished_ns) END
    FROM request WHERE session_id IS NOT NULL GROUP BY pass, session_id
),
change AS (
    SELECT what, start_ns AS t, 1 AS delta FROM stretch, horizon WHERE coalesce(end_ns, high_ns) > start_ns
    UNION ALL
    SELECT what, coalesce(end_ns, high_ns), -1 FROM stretch, horizon WHERE coalesce(end_ns, high_ns) > start_ns
    UNION ALL
    SELECT 'engine', unnest([low_ns, high_ns]), 0 FROM horizon
),
at_time AS (
    SELECT
        t,
        coalesce(sum(delta) FILTER (WHERE what = 'engine'), 0) AS engine, coalesce(sum(delta) FILTER (WHERE what = 'frontend'), 0) AS frontend,
        coalesce(sum(delta) FILTER (WHERE what = 'tool'), 0) AS tool, coalesce(sum(delta) FILTER (WHERE what = 'answer'), 0) AS answer,
        coalesce(sum(delta) FILTER (WHERE what = 'open'), 0) AS open
    FROM change
    GROUP BY t
),
state AS (
    SELECT
        t AS start_ns, lead(t) OVER (ORDER BY t) AS end_ns, sum(engine) OVER so_far AS engine, sum(frontend) OVER so_far AS frontend,
        sum(tool) OVER so_far AS tool, sum(answer) OVER so_far AS answer,
        sum(open) OVER so_far AS open
    FROM at_time
    WINDOW so_far AS (ORDER BY t ROWS UNBOUNDED PRECEDING)
)
SELECT
    row_number() OVER (ORDER BY s.start_ns) AS engine_id, s.start_ns, s.end_ns,
    CASE WHEN s.frontend > 0 THEN 'frontend' WHEN s.open > 0 AND s.tool = s.open THEN 'tool_wait' ELSE 'no_work' END AS cause,
    CASE
        WHEN s.frontend > 0 THEN format('no request in the engine, {} sent and not yet queued', s.frontend::BIGINT)
        WHEN s.open > 0 THEN format('no request in the engine, {} of {} open sessions wait for a tool', s.tool::BIGINT, s.open::BIGINT)
        ELSE 'no request in the engine, no session open'
    END || CASE WHEN s.answer > 0 AND s.frontend = 0 THEN format(', {} answers on their way to the client', s.answer::BIGINT) ELSE '' END AS detail
FROM state AS s, horizon AS h
WHERE s.engine = 0 AND s.end_ns > h.low_ns AND s.start_ns < h.high_ns AND EXISTS (FROM request);
