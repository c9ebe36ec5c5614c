-- One row per term ('e2e', 'ttft'): what the slow requests and those in the middle have to do. Needs request_group.
-- n                          requests of the pass whose parts are known
-- p50_ns, p99_ns             of the term over these, ns
-- slow, middle               requests in the two groups
-- slow_wall_ns, middle_wall_ns             mean of the term in each, ns
-- slow_computed_tokens, middle_computed_tokens   mean prompt tokens that were not cached
-- slow_output_tokens, middle_output_tokens mean output tokens
-- slow_preemptions           mean preemptions of the slow ones
SELECT
    term, any_value(g.n) AS n, any_value(g.p50_ns) AS p50_ns, any_value(g.p99_ns) AS p99_ns,
    count(*) FILTER (WHERE grp = 'slow') AS slow, count(*) FILTER (WHERE grp = 'middle') AS middle,
    avg(p.wall_ns) FILTER (WHERE grp = 'slow') AS slow_wall_ns, avg(p.wall_ns) FILTER (WHERE grp = 'middle') AS middle_wall_ns,
    avg(q.prompt_tokens - q.cached_tokens) FILTER (WHERE grp = 'slow') AS slow_computed_tokens,
    avg(q.prompt_tokens - q.cached_tokens) FILTER (WHERE grp = 'middle') AS middle_computed_tokens,
    avg(q.output_tokens) FILTER (WHERE grp = 'slow') AS slow_output_tokens,
    avg(q.output_tokens) FILTER (WHERE grp = 'middle') AS middle_output_tokens,
    avg(q.n_preemptions) FILTER (WHERE grp = 'slow') AS slow_preemptions
FROM request_group AS g
JOIN request_part AS p USING (request_id, term)
JOIN requests AS q ON q.request_id = g.request_id AND q.run_id = getvariable('run_id')
GROUP BY term
ORDER BY term
