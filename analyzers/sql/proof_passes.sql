-- One row per pass of a proof's run directory, without the warm-up: what prove compares.
-- pass            its name
-- step_ns         ns of the engine's steps, overlap counted once
-- steps           steps with work
-- requests, failed, prompt_tokens, cached_tokens, output_tokens   of its requests
WITH step AS (
    SELECT
        pid, seq,
        greatest(result_start_ns - greatest(sched_end_ns, coalesce(max(result_start_ns) OVER (
            PARTITION BY pid ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), sched_end_ns)), 0) AS step_ns
    FROM ledger_steps
    WHERE run_id = $run_id AND result_start_ns >= sched_end_ns
),
served AS (
    SELECT DISTINCT q.pass, r.pid, r.seq
    FROM ledger_rows AS r
    JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.engine_request_id
    WHERE r.run_id = $run_id AND r.new_tokens > 0
),
time AS (SELECT v.pass, sum(s.step_ns)::BIGINT AS step_ns, count(*) AS steps FROM served AS v JOIN step AS s USING (pid, seq) GROUP BY v.pass)
SELECT
    q.pass, t.step_ns, t.steps, count(*) AS requests, count(*) FILTER (WHERE q.status <> 'ok') AS failed,
    sum(q.prompt_tokens)::BIGINT AS prompt_tokens, sum(q.cached_tokens)::BIGINT AS cached_tokens,
    sum(q.output_tokens)::BIGINT AS output_tokens
FROM requests AS q
JOIN time AS t ON t.pass IS NOT DISTINCT FROM q.pass
WHERE q.run_id = $run_id AND q.pass IS DISTINCT FROM 'warmup'
GROUP BY q.pass, t.step_ns, t.steps
ORDER BY min(q.arrival_ns)
