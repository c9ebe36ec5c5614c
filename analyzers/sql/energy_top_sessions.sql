-- One row per session with a known energy, the dearest first, from energy_request.
-- session_id      key
-- requests        requests with recorded steps
-- known           of these, requests whose energy is known
-- prompt_tokens, output_tokens   of the known ones, tokens
-- energy_j        of the known ones, J
SELECT
    q.session_id, count(*) AS requests, count(*) FILTER (WHERE e.why IS NULL) AS known,
    sum(q.prompt_tokens) FILTER (WHERE e.why IS NULL)::BIGINT AS prompt_tokens,
    sum(q.output_tokens) FILTER (WHERE e.why IS NULL)::BIGINT AS output_tokens,
    sum(e.energy_j) FILTER (WHERE e.why IS NULL) AS energy_j
FROM energy_request AS e
JOIN requests AS q ON q.request_id = e.request_id AND q.run_id = $run_id
WHERE q.session_id IS NOT NULL
GROUP BY q.session_id
HAVING count(*) FILTER (WHERE e.why IS NULL) > 0
ORDER BY energy_j DESC, q.session_id
LIMIT $top
