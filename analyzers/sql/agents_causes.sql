-- One row per cause of loss of a pass, the most tokens first.
-- cause            as in reuse; 'cause_unknown' where it is NULL
-- tokens, turns    tokens lost, and requests that lost some
-- device_ns        ns of device time; NULL: not recorded
-- energy_j         J
-- divergence_role, divergence_token, detail   where it happened in most of these turns
SELECT
    coalesce(r.cause, 'cause_unknown') AS cause, sum(r.tokens)::BIGINT AS tokens, count(DISTINCT r.request_id) AS turns,
    sum(r.device_ns)::BIGINT AS device_ns, sum(r.energy_j) AS energy_j, mode(r.divergence_role) AS divergence_role,
    mode(r.divergence_token) AS divergence_token, mode(r.detail) AS detail
FROM reuse AS r
JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.request_id
WHERE r.run_id = $run_id AND r.piece = 'lost' AND q.pass IS NOT DISTINCT FROM $pass
GROUP BY 1
ORDER BY tokens DESC, cause
