-- One row per request whose energy is known, the dearest first, from energy_request.
-- request_id, client_request_id, session_id, pass   keys
-- prompt_tokens, output_tokens   tokens
-- device_ns       device time over its recorded steps, ns
-- energy_j        J, over its recorded steps
SELECT
    q.request_id, q.client_request_id, q.session_id, q.pass, q.prompt_tokens, q.output_tokens,
    (q.prefill_device_ns + q.decode_device_ns)::BIGINT AS device_ns, e.energy_j
FROM energy_request AS e
JOIN requests AS q ON q.request_id = e.request_id AND q.run_id = $run_id
WHERE e.why IS NULL
ORDER BY e.energy_j DESC, q.request_id
LIMIT $top
