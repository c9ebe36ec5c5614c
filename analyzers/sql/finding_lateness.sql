-- One row: how late the client sent, and how late it saw what the engine gave. Requests of the warm-up are left out.
-- planned      requests that were to be sent at a time
-- late_ns      95th percentile of how much later they were sent, ns; below 0: earlier
-- late_most_ns the most
-- answered     requests of which the engine's last result and the client's last token are known
-- output_ns    median ns from the one to the other
WITH last AS (
    SELECT r.engine_request_id AS request_id, max(s.result_start_ns) AS given_ns
    FROM ledger_rows AS r
    JOIN ledger_steps AS s ON s.run_id = r.run_id AND s.pid = r.pid AND s.seq = r.seq
    WHERE r.run_id = $run_id AND r.accepted_tokens > 0
    GROUP BY r.engine_request_id
)
SELECT
    count(q.arrival_ns - q.planned_ns) AS planned, quantile_cont(q.arrival_ns - q.planned_ns, 0.95) AS late_ns,
    max(q.arrival_ns - q.planned_ns)::BIGINT AS late_most_ns,
    count(q.last_token_ns - l.given_ns) AS answered, quantile_cont(q.last_token_ns - l.given_ns, 0.5) AS output_ns
FROM requests AS q
LEFT JOIN last AS l USING (request_id)
WHERE q.run_id = $run_id AND q.pass IS DISTINCT FROM 'warmup' AND q.status = 'ok'
