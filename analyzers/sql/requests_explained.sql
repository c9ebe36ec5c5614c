-- One row per term and part of it: what makes the slow requests slow. Needs request_group and request_part. Times in ns.
-- part           'frontend' | 'queue' | 'prefill' | 'interference' | 'decode' | 'preempted' | 'gap' | 'stream'
-- total_ns       Σ over all requests of the pass whose parts are known
-- p50_ns, p99_ns percentiles of the part over these, by linear interpolation
-- middle_ns, slow_ns   mean in the two groups; over the parts they sum to the mean term
-- difference_ns  slow - middle
-- share          difference / difference of the term, of 1; NULL where the slow ones are no slower
WITH parts AS (
    UNPIVOT (
        SELECT
            request_id, term, frontend_ns AS frontend, queue_ns AS queue, prefill_ns AS prefill, coalesce(interference_ns, 0) AS interference,
            decode_ns AS decode, preempted_ns AS preempted, gap_ns AS gap, stream_ns AS stream
        FROM request_part
        WHERE decode_ns IS NOT NULL
    )
    ON frontend, queue, prefill, interference, decode, preempted, gap, stream
    INTO NAME part VALUE ns
),
chosen AS (
    SELECT p.*, g.grp
    FROM parts AS p
    JOIN requests AS q ON q.request_id = p.request_id AND q.run_id = getvariable('run_id')
    LEFT JOIN request_group AS g ON g.request_id = p.request_id AND g.term = p.term
    WHERE q.status = 'ok' AND ($every OR q.pass IS NOT DISTINCT FROM $pass)
),
one AS (SELECT DISTINCT request_id, term, part, ns FROM chosen),
total AS (
    SELECT term, part, sum(ns)::BIGINT AS total_ns, quantile_cont(ns, 0.5) AS p50_ns, quantile_cont(ns, 0.99) AS p99_ns
    FROM one
    GROUP BY term, part
),
mean AS (
    SELECT term, part, avg(ns) FILTER (WHERE grp = 'middle') AS middle_ns, avg(ns) FILTER (WHERE grp = 'slow') AS slow_ns
    FROM chosen
    GROUP BY term, part
)
SELECT
    term, part, total_ns, p50_ns, p99_ns, middle_ns, slow_ns, slow_ns - middle_ns AS difference_ns,
    CASE WHEN sum(slow_ns - middle_ns) OVER (PARTITION BY term) > 0
        THEN (slow_ns - middle_ns) / sum(slow_ns - middle_ns) OVER (PARTITION BY term) END AS share
FROM total
JOIN mean USING (term, part)
ORDER BY term, list_position(['frontend', 'queue', 'prefill', 'interference', 'decode', 'preempted', 'gap', 'stream'], part)
