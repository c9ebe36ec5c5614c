-- One row per group of idle pieces that last $min_ns or longer; what is not recorded is in no group. Without an order:
-- DuckDB 2.0.1 narrows a sum that it sorts by to one byte where the joined table has no row of the run.
-- name                          by $by: 'cause'; 'step-kind': of the step the piece lies in, 'between steps', 'outside steps'
-- pieces                        number
-- ns, p50_ns, p99_ns, max_ns    ns
SELECT
    CASE $by
        WHEN 'cause' THEN coalesce(g.cause, 'not analyzed')
        ELSE CASE
            WHEN g.step_before IS NULL OR g.step_after IS NULL THEN 'outside steps'
            WHEN g.step_before = g.step_after THEN coalesce(s.kind, 'other')
            ELSE 'between steps'
        END
    END AS name,
    count(*) AS pieces, sum(g.dur_ns)::BIGINT AS ns,
    round(quantile_cont(g.dur_ns, 0.5))::BIGINT AS p50_ns, round(quantile_cont(g.dur_ns, 0.99))::BIGINT AS p99_ns,
    max(g.dur_ns) AS max_ns
FROM gaps AS g
LEFT JOIN steps AS s ON s.run_id = g.run_id AND s.step_id = g.step_after
WHERE g.run_id = $run_id AND g.cause IS DISTINCT FROM 'unrecorded' AND g.dur_ns >= $min_ns
GROUP BY name;
