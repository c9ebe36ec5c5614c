-- One row per interval between two output tokens of a request that was answered; tokens of one chunk share its time.
-- request_id
-- ts_ns           ns; when the second of the two came
-- itl_ns          ns
SELECT t.request_id, t.ts_ns, t.ts_ns - lag(t.ts_ns) OVER (PARTITION BY t.request_id ORDER BY t.i) AS itl_ns
FROM tokens AS t
JOIN requests AS q ON q.run_id = t.run_id AND q.request_id = t.request_id
WHERE t.run_id = $run_id AND q.status = 'ok' AND q.pass IS DISTINCT FROM 'warmup'
QUALIFY itl_ns IS NOT NULL
