-- One row per request and piece of its prompt by cause. Tokens.
-- request_id
-- part        'cached' | 'fresh' | 'resent_output' | 'lost: <cause>'
-- tokens      the parts of a request sum to its prompt
SELECT
    r.request_id, CASE WHEN r.piece = 'lost' THEN 'lost: ' || coalesce(r.cause, 'cause unknown') ELSE r.piece END AS part,
    sum(r.tokens)::BIGINT AS tokens
FROM reuse AS r
JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.request_id
WHERE r.run_id = $run_id AND q.status = 'ok' AND q.pass IS DISTINCT FROM 'warmup'
GROUP BY 1, 2
ORDER BY 1, 2
