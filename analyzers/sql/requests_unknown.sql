-- One row per reason why parts are not known, over the requests of $pass (any where $every). Needs request_part.
-- why        as in requests_parts.sql
-- requests   count
SELECT p.why, count(*) AS requests
FROM request_part AS p
JOIN requests AS q ON q.request_id = p.request_id AND q.run_id = getvariable('run_id')
WHERE p.term = 'e2e' AND p.why IS NOT NULL AND ($every OR q.pass IS NOT DISTINCT FROM $pass)
GROUP BY p.why
ORDER BY requests DESC, p.why
