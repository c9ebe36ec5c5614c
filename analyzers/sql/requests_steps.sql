-- request_step: one row per ledger step, with the time that is its own. Times in ns.
-- pid, seq         keys
-- sched_ns         the engine began to schedule it
-- start_ns, end_ns its interval: to the end of its result, from its scheduling or, where an earlier step was still under way
--                  (asynchronous scheduling), from that one's end; pipeline stages work side by side, so there it is not cut
-- next_sched_ns    the engine began to schedule the step after it
-- prefill_rows, decode_rows   requests in it by what they computed
-- alone_ns         what its decode rows take without a prefill beside them (method §4, T(0,D)): the median of the decode-only
--                  steps with the nearest number of rows, first of those recorded (or not) like itself; NULL: there are none
-- with_prefill_ns, without_prefill_ns   Σ (end - start) over the engine core's steps up to and with this one, by kind
CREATE OR REPLACE TEMP TABLE request_step AS
WITH engine AS (
    SELECT pid, max(try_cast(json_extract_string(text, '$.pipeline_parallel_size') AS BIGINT)) AS stages
    FROM ledger_marks
    WHERE run_id = getvariable('run_id') AND kind = 'header' AND json_valid(text)
    GROUP BY pid
),
counted AS (
    SELECT pid, seq, count(*) FILTER (WHERE prefill) AS prefill_rows, count(*) FILTER (WHERE NOT prefill) AS decode_rows
    FROM request_row
    GROUP BY pid, seq
),
timed AS (
    SELECT
        l.pid, l.seq, l.pass, l.sched_start_ns AS sched_ns, l.result_end_ns IS NOT NULL AS whole,
        greatest(coalesce(l.result_end_ns, l.sched_end_ns, l.sched_start_ns), l.sched_start_ns) AS end_ns,
        coalesce(e.stages, 1) > 1 AS side_by_side, coalesce(c.prefill_rows, 0) AS prefill_rows, coalesce(c.decode_rows, 0) AS decode_rows,
        coalesce(l.sched_start_ns >= r.window_start_ns AND l.sched_start_ns < r.window_end_ns, false) AS recorded
    FROM ledger_steps AS l
    JOIN runs AS r USING (run_id)
    LEFT JOIN engine AS e ON e.pid = l.pid
    LEFT JOIN counted AS c ON c.pid = l.pid AND c.seq = l.seq
    WHERE l.run_id = getvariable('run_id')
),
cut AS (
    SELECT
        *,
        CASE WHEN side_by_side THEN sched_ns ELSE least(end_ns, greatest(sched_ns, coalesce(max(end_ns) OVER (
            PARTITION BY pid ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), sched_ns))) END AS start_ns
    FROM timed
),
alone AS (
    SELECT recorded, decode_rows, median(end_ns - start_ns) AS ns
    FROM cut
    WHERE prefill_rows = 0 AND decode_rows > 0 AND whole AND pass IS DISTINCT FROM 'warmup'  -- the first steps compile
    GROUP BY recorded, decode_rows
),
matched AS (
    SELECT
        m.recorded, m.decode_rows,
        arg_min(a.ns, (a.recorded <> m.recorded, abs(a.decode_rows - m.decode_rows), a.decode_rows)) AS ns
    FROM (SELECT DISTINCT recorded, decode_rows FROM cut WHERE prefill_rows > 0 AND decode_rows > 0) AS m, alone AS a
    GROUP BY ALL
)
SELECT
    c.pid, c.seq, c.sched_ns, c.start_ns, c.end_ns, lead(c.sched_ns) OVER core AS next_sched_ns, c.prefill_rows, c.decode_rows,
    CASE WHEN c.prefill_rows > 0 THEN round(m.ns)::BIGINT END AS alone_ns,
    coalesce(sum(c.end_ns - c.start_ns) FILTER (WHERE c.prefill_rows > 0) OVER core, 0)::BIGINT AS with_prefill_ns,
    coalesce(sum(c.end_ns - c.start_ns) FILTER (WHERE c.prefill_rows = 0) OVER core, 0)::BIGINT AS without_prefill_ns
FROM cut AS c
LEFT JOIN matched AS m ON m.recorded = c.recorded AND m.decode_rows = c.decode_rows
WINDOW core AS (PARTITION BY c.pid ORDER BY c.seq);
