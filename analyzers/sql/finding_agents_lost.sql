-- One row per pass and reason for which tokens of prompts were computed again.
-- pass                            of its requests
-- cause, divergence_role, detail  as in reuse, the number of the segment left out
-- turns, tokens                   requests that lost some, and the tokens
-- sessions                        sessions of these
-- device_ns                       ns of device time; NULL: not recorded
-- energy_j                        J
-- first_token                     the token at which the prefix broke in most of them; NULL: it did not break
WITH turn AS (
    SELECT
        q.pass, r.request_id, q.session_id, r.cause, r.divergence_role,
        regexp_replace(r.detail, ' \(segment [0-9]+\)', '', 'g') AS detail, sum(r.tokens) AS tokens,
        sum(r.device_ns) AS device_ns, sum(r.energy_j) AS energy_j, min(r.divergence_token) AS divergence_token
    FROM reuse AS r
    JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.request_id
    WHERE r.run_id = $run_id AND r.piece = 'lost'
    GROUP BY ALL
)
SELECT
    pass, cause, divergence_role, detail, count(*) AS turns, sum(tokens)::BIGINT AS tokens,
    count(DISTINCT session_id) AS sessions, sum(device_ns)::BIGINT AS device_ns, sum(energy_j) AS energy_j,
    mode(divergence_token) AS first_token
FROM turn
GROUP BY ALL
ORDER BY tokens DESC, cause, divergence_role, detail
