-- One row per pass of the requests in the ledger, the one to predict from first: an unprofiled one. Without the warm-up.
-- pass        of its requests
-- requests    in it
-- cache_need_tokens  what a cache must hold to lose nothing: the longest context of every session
WITH session AS (
    SELECT
        q.pass, q.session_id, max(q.prompt_tokens + coalesce(q.output_tokens, 0)) AS context, count(*) AS requests,
        min(q.scheduled_ns) AS first_ns
    FROM requests AS q
    WHERE q.run_id = $run_id AND q.scheduled_ns IS NOT NULL AND q.pass IS DISTINCT FROM 'warmup'
        AND q.request_id IN (SELECT engine_request_id FROM ledger_rows WHERE run_id = $run_id)
    GROUP BY ALL
)
SELECT pass, sum(requests)::BIGINT AS requests, coalesce(sum(context), 0)::BIGINT AS cache_need_tokens
FROM session
GROUP BY pass
ORDER BY CASE pass WHEN 'control' THEN 0 WHEN 'profiled' THEN 2 ELSE 1 END, min(first_ns)
