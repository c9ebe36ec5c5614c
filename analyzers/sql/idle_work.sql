-- One row per cause and evidence of idle pieces of $min_ns or longer: the three largest of each cause.
-- cause, evidence   evidence without thread, state of requests and times
-- pieces            number
-- ns                ns in all
-- steps             steps of the run with device time
WITH piece AS (
    SELECT coalesce(cause, 'not analyzed') AS cause, regexp_replace(coalesce(detail, ''), ', (launched |thread -?\d+|\d+ running, \d+ waiting).*$', '') AS evidence, dur_ns
    FROM gaps
    WHERE run_id = $run_id AND cause IS DISTINCT FROM 'unrecorded' AND dur_ns >= $min_ns
)
SELECT
    cause, evidence, count(*) AS pieces, sum(dur_ns)::BIGINT AS ns,
    (SELECT count(*) FROM steps WHERE run_id = $run_id AND busy_ns > 0) AS steps
FROM piece
GROUP BY cause, evidence
QUALIFY row_number() OVER (PARTITION BY cause ORDER BY ns DESC, evidence) <= 3
ORDER BY cause, ns DESC, evidence;
