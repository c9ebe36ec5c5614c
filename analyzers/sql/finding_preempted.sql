-- One row per request and step of one pass that computed tokens again which a preemption had taken away.
-- pid, seq, request_id
-- tokens   computed again
-- pairs    (token, token it looks back on) of these, itself included
-- alone    share of the step that is this: 0 where anything else was computed in it, else one over the requests in it
WITH chunk AS (
    SELECT
        r.pid, r.seq, r.engine_request_id AS request_id, r.computed_before AS a, r.computed_before + r.new_tokens AS b,
        greatest(r.computed_before, coalesce(max(r.computed_before + r.new_tokens) OVER (
            PARTITION BY r.pid, r.engine_request_id ORDER BY r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0)) AS fresh_from,
        count(*) OVER (PARTITION BY r.pid, r.seq) AS beside
    FROM ledger_rows AS r
    JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.engine_request_id AND q.pass IS NOT DISTINCT FROM $pass
    WHERE r.run_id = $run_id AND r.new_tokens > 0 AND coalesce(r.spec_tokens, 0) = 0
),
again AS (
    SELECT
        *, (least(b, fresh_from) - a)::DOUBLE AS tokens, least(b, fresh_from)::DOUBLE AS until,
        -- the last of them is the one that gives the next token: nothing of it was wasted but its context
        bool_and(b <= fresh_from + 1 AND b - a > 1) OVER (PARTITION BY pid, seq) AS nothing_else
    FROM chunk
)
SELECT
    pid, seq, request_id, tokens, tokens * (a + until + 1) / 2 AS pairs, CASE WHEN nothing_else THEN 1.0 / beside ELSE 0 END AS alone
FROM again
WHERE until > a AND b - a > 1
    AND request_id IN (SELECT engine_request_id FROM ledger_rows WHERE run_id = $run_id AND is_resumed)
ORDER BY pid, seq, request_id
