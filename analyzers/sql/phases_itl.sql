-- One row per pass and whether a prefill rode along: times between two results of a decoding request, as the engine's ledger has them.
-- pass, with_prefill
-- n                          intervals
-- p50_ns, p90_ns, p99_ns     percentiles by linear interpolation, ns
WITH step AS (
    SELECT
        l.pid, l.seq, l.pass, l.result_end_ns,
        coalesce(bool_or(r.computed_before < r.prompt_tokens), false) AS with_prefill
    FROM ledger_steps AS l
    JOIN ledger_rows AS r USING (run_id, pid, seq)
    WHERE l.run_id = $run_id
    GROUP BY ALL
),
interval AS (
    SELECT
        s.pass, s.with_prefill,
        s.result_end_ns - lag(s.result_end_ns) OVER (PARTITION BY r.pid, r.engine_request_id ORDER BY r.seq) AS ns
    FROM ledger_rows AS r
    JOIN step AS s USING (pid, seq)
    WHERE r.run_id = $run_id AND r.accepted_tokens > 0
)
SELECT pass, with_prefill, count(*) AS n, quantile_cont(ns, 0.5) AS p50_ns, quantile_cont(ns, 0.9) AS p90_ns, quantile_cont(ns, 0.99) AS p99_ns
FROM interval
WHERE ns IS NOT NULL
GROUP BY pass, with_prefill
ORDER BY pass, with_prefill
