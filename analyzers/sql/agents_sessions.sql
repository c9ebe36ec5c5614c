-- Sessions and turns of requests for which nobody told them. Changes requests; no result.
UPDATE requests AS q
SET session_id = f.session_id, turn = f.turn
FROM session_by_prefix AS f
WHERE q.run_id = getvariable('run_id') AND q.request_id = f.request_id;

UPDATE requests AS q
SET turn = n.nth
FROM (
    SELECT
        request_id,
        row_number() OVER (PARTITION BY pass, session_id ORDER BY coalesce(arrival_ns, queued_ns), request_id) - 1 AS nth
    FROM requests
    WHERE run_id = getvariable('run_id')
) AS n
WHERE q.run_id = getvariable('run_id') AND q.request_id = n.request_id AND q.turn IS NULL AND q.session_id IS NOT NULL;
