-- One row per request without a session whose prompt is known by keys, in order of time within its pass.
-- pass, request_id
-- keys   of the prompt up to every token or block, as in prompts
SELECT q.pass, q.request_id, p.prefix_keys[: p.prompt_tokens // p.key_tokens] AS keys
FROM requests AS q
JOIN prompts AS p ON p.run_id = q.run_id AND p.request_id = q.request_id
WHERE q.run_id = $run_id AND q.session_id IS NULL AND p.key_tokens > 0
ORDER BY q.pass, coalesce(q.queued_ns, q.arrival_ns), q.request_id
