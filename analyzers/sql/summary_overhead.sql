-- One row: what recording cost, the profiled window against the control pass, both as the engine's own ledger has them.
-- Steps are compared at equal kind and batch: per (token count) group with steps in both, the medians of schedule-to-result.
-- steps          steps of the window that have a counterpart
-- step_ratio     Σ window duration / Σ what the control's medians say for the same steps; 1.0: recording cost nothing
-- tpot_ratio     median inter-token time inside the window / median of the control pass
-- throughput_ratio   1 / step_ratio: tokens per engine second, window against control
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
    SELECT q.pass, t.ts_ns, t.ts_ns - lag(t.ts_ns) OVER (PARTITION BY t.request_id ORDER BY t.i) AS ns, r.window_start_ns, r.window_end_ns
    FROM tokens AS t
    JOIN requests AS q USING (run_id, request_id)
    JOIN runs AS r USING (run_id)
    WHERE t.run_id = $run_id
)
SELECT
    sum(n)::BIGINT AS steps,
    sum(window_ns) / nullif(sum(n * control_ns), 0) AS step_ratio,
    (SELECT median(ns) FILTER (WHERE pass = 'profiled' AND ts_ns BETWEEN window_start_ns AND window_end_ns)
        / nullif(median(ns) FILTER (WHERE pass = 'control'), 0) FROM token) AS tpot_ratio,
    sum(n * control_ns) / nullif(sum(window_ns), 0) AS throughput_ratio
FROM grouped
WHERE n > 0 AND control_ns IS NOT NULL
