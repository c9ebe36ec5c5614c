-- request_group: one row per request, term and group it is in, of the requests of $pass (any where $every) that ended well.
-- term     'e2e' | 'ttft', as in request_part
-- grp      'slow': at or above the 99th percentile of the term (linear interpolation), at least one;
--          'middle': the tenth of the requests on either side of the median, by rank
-- n        requests the groups were picked from
-- p50_ns, p99_ns   percentiles of the term over these, ns
CREATE OR REPLACE TEMP TABLE request_group AS
WITH known AS (
    SELECT p.request_id, p.term, p.wall_ns, row_number() OVER (PARTITION BY p.term ORDER BY p.wall_ns, p.request_id) AS pos
    FROM request_part AS p
    JOIN requests AS q ON q.request_id = p.request_id AND q.run_id = getvariable('run_id')
    WHERE q.status = 'ok' AND p.decode_ns IS NOT NULL AND ($every OR q.pass IS NOT DISTINCT FROM $pass)
),
term AS (
    SELECT term, count(*) AS n, quantile_cont(wall_ns, 0.5) AS p50_ns, quantile_cont(wall_ns, 0.99) AS p99_ns FROM known GROUP BY term
)
SELECT k.request_id, k.term, g.grp, t.n, t.p50_ns, t.p99_ns
FROM known AS k
JOIN term AS t USING (term), (VALUES ('slow'), ('middle')) AS g (grp)
WHERE CASE g.grp WHEN 'slow' THEN k.wall_ns >= t.p99_ns ELSE abs(k.pos - (t.n + 1) / 2) <= greatest(0.5, 0.1 * t.n) END
