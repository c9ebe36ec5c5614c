-- One row: device time in which requests were between a client and the engine's queue, and nothing else was there to do.
-- waits        pieces of idle time
-- frontend_ns  ns of them
-- over_ns      ns of them beyond $floor ns each
SELECT
    count(*) AS waits, coalesce(sum(dur_ns), 0)::BIGINT AS frontend_ns, coalesce(sum(greatest(0, dur_ns - $floor)), 0)::BIGINT AS over_ns
FROM gaps
WHERE run_id = $run_id AND cause = 'frontend'
