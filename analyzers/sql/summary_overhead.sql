-- One row: what recording cost, the profiled window against the control pass.
-- steps              steps of the window whose token count occurs in the control pass too
-- step_ratio         Σ schedule-to-result of these steps / Σ the control's median for the same token count; 1.0: no cost
-- throughput_ratio   its inverse: tokens per engine second, window against control
-- tokens             output tokens of the window whose counterpart (same session, turn and index) is in the control pass
-- tpot_ratio         Σ inter-token time of these / Σ of their counterparts, as the engine's ledger has them
WITH step AS (
    SELECT
        l.pass, l.total_tokens, l.result_end_ns - l.sched_start_ns AS ns,
        l.sched_start_ns >= r.window_start_ns AND l.sched_start_ns < r.window_end_ns AS inside
    FROM ledger_steps AS l
    JOIN runs AS r USING (run_id)
    WHERE l.run_id = $run_id AND l.total_tokens > 0 AND l.result_end_ns IS NOT NULL
),
grouped AS (
    SELECT
        total_tokens,
        count(*) FILTER (WHERE inside) AS n,
        sum(ns) FILTER (WHERE inside) AS window_ns,
        median(ns) FILTER (WHERE pass = 'control') AS control_ns
    FROM step
    GROUP BY total_tokens
),
token AS (
    SELECT
        q.pass, q.session_id, q.turn, l.output_before AS i,
        g.result_end_ns - lag(g.result_end_ns) OVER (PARTITION BY l.pid, l.engine_request_id ORDER BY l.seq) AS ns,
        lag(g.result_end_ns) OVER (PARTITION BY l.pid, l.engine_request_id ORDER BY l.seq) >= r.window_start_ns
            AND g.result_end_ns < r.window_end_ns AS inside
    FROM ledger_rows AS l
    JOIN ledger_steps AS g USING (run_id, pid, seq)
    JOIN requests AS q ON q.run_id = l.run_id AND q.request_id = l.engine_request_id
    JOIN runs AS r ON r.run_id = l.run_id
    WHERE l.run_id = $run_id AND l.accepted_tokens > 0
),
paired AS (
    SELECT count(*) AS tokens, sum(p.ns) / nullif(sum(c.ns), 0) AS tpot_ratio
    FROM token AS p
    JOIN token AS c ON c.session_id = p.session_id AND c.turn = p.turn AND c.i = p.i
    WHERE p.pass = 'profiled' AND p.inside AND c.pass = 'control'
)
SELECT
    sum(n)::BIGINT AS steps,
    sum(window_ns) / nullif(sum(n * control_ns), 0) AS step_ratio,
    sum(n * control_ns) / nullif(sum(window_ns), 0) AS throughput_ratio,
    any_value(paired.tokens) AS tokens,
    any_value(paired.tpot_ratio) AS tpot_ratio
FROM grouped, paired
WHERE n > 0 AND control_ns IS NOT NULL
