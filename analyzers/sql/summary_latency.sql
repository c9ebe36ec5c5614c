-- One row per pass of the workload and latency term (method §11), over requests with status 'ok'.
-- pass   'warmup' | 'control' | 'profiled'; NULL: not our workload
-- term   'ttft' | 'tpot' | 'itl' | 'queue' | 'e2e'
-- n      samples
-- p50_ns, p90_ns, p99_ns   percentiles by linear interpolation, ns
WITH ok AS (SELECT * FROM requests WHERE run_id = $run_id AND status = 'ok'),
sample AS (
    SELECT pass, 'ttft' AS term, first_token_ns - arrival_ns AS ns FROM ok WHERE client_request_id IS NOT NULL
    UNION ALL
    SELECT pass, 'tpot', (last_token_ns - first_token_ns) / (output_tokens - 1) FROM ok WHERE output_tokens > 1
    UNION ALL
    SELECT o.pass, 'itl', t.ts_ns - lag(t.ts_ns) OVER (PARTITION BY t.request_id ORDER BY t.i)
    FROM tokens AS t
    JOIN ok AS o ON o.request_id = t.request_id
    WHERE t.run_id = $run_id
    UNION ALL
    SELECT pass, 'queue', queue_ns FROM ok
    UNION ALL
    SELECT pass, 'e2e', last_token_ns - arrival_ns FROM ok
)
SELECT
    pass, term, count(ns) AS n, quantile_cont(ns, 0.5) AS p50_ns, quantile_cont(ns, 0.9) AS p90_ns, quantile_cont(ns, 0.99) AS p99_ns
FROM sample
GROUP BY pass, term
HAVING count(ns) > 0
ORDER BY pass, term
