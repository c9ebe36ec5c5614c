-- One row per request whose prompt is known by its keys and that was scheduled, in order of scheduling within its cache.
-- request_id
-- scope         requests of one scope share a cache: a pass of the workload, each of which has its own salt
-- replica       engine core that ran it
-- session_id, turn
-- scheduled_ns  ns
-- computed_ns   ns; its prompt is computed: the engine took in the first output token, else the client saw it
-- output_ns     ns; its output is complete
-- prompt_tokens, cached_tokens
-- key_tokens, prefix_keys, tail_keys as in prompts
-- starts, roles of its segments; NULL: not known
WITH core AS (
    SELECT r.engine_request_id, min(r.pid) AS pid, min(s.result_start_ns) FILTER (WHERE r.computed_before + r.new_tokens >= r.prompt_tokens) AS computed_ns
    FROM ledger_rows AS r
    JOIN ledger_steps AS s ON s.run_id = r.run_id AND s.pid = r.pid AND s.seq = r.seq
    WHERE r.run_id = $run_id
    GROUP BY r.engine_request_id
),
part AS (
    SELECT request_id, list(start_token ORDER BY segment) AS starts, list(role ORDER BY segment) AS roles
    FROM prompt_segments WHERE run_id = $run_id GROUP BY request_id
)
SELECT
    q.request_id, q.pass AS scope, coalesce(c.pid, 0) AS replica, q.session_id, q.turn, q.scheduled_ns,
    coalesce(c.computed_ns, q.first_token_ns) AS computed_ns, coalesce(q.last_token_ns, q.finished_ns) AS output_ns,
    p.prompt_tokens, least(q.cached_tokens, p.prompt_tokens) AS cached_tokens, p.key_tokens, p.prefix_keys, p.tail_keys, s.starts, s.roles
FROM prompts AS p
JOIN requests AS q ON q.run_id = p.run_id AND q.request_id = p.request_id
LEFT JOIN core AS c ON c.engine_request_id = q.request_id
LEFT JOIN part AS s ON s.request_id = q.request_id
WHERE p.run_id = $run_id AND q.scheduled_ns IS NOT NULL AND q.cached_tokens IS NOT NULL AND q.prompt_tokens = p.prompt_tokens
    AND coalesce(c.computed_ns, q.first_token_ns) IS NOT NULL AND coalesce(q.last_token_ns, q.finished_ns) IS NOT NULL
ORDER BY scope, q.scheduled_ns, q.request_id
