-- Check, one row per rank: does the recording show graphs being captured? Captured work does not run. value: captures.
-- Reads host_mark.
WITH seen AS (
    SELECT
        r.rank,
        count(m.rank) FILTER (WHERE contains(m.name, 'StreamBeginCapture')) AS n_calls,
        count(m.rank) FILTER (WHERE m.kind = 'annotation' AND starts_with(m.name, 'capture_')) AS n_marks
    FROM (SELECT DISTINCT rank FROM sources WHERE run_id = $run_id AND role = 'trace') AS r
    LEFT JOIN host_mark AS m USING (rank)
    GROUP BY r.rank
),
stepped AS (
    SELECT
        s.rank, greatest(s.n_calls, s.n_marks) AS n,
        (SELECT count(*) FROM steps AS t WHERE t.run_id = $run_id AND t.rank = s.rank AND t.kind <> 'other') AS n_steps
    FROM seen AS s
)
SELECT
    rank, 'capture_phase' AS check_id,
    CASE WHEN n = 0 THEN 'ok' WHEN n_steps = 0 THEN 'withheld' ELSE 'warning' END AS status,
    n::DOUBLE AS value, 0::DOUBLE AS threshold,
    '["devices", "kernels", "steps", "gaps", "devices.busy_ns", "devices.idle_ns", "steps.busy_ns", "steps.idle_ns"]' AS affects,
    CASE
        WHEN n = 0 THEN 'no graph was captured during the recording'
        WHEN n_steps = 0 THEN format(
            'this is the recording of a capture phase ({} graphs), not of serving: its launches do not run. Give it beside the run''s '
            || 'trace, which it explains', n)
        ELSE format(
            '{} graphs were captured during the recording: steps with a capture are slower than others. Warm up all batch sizes first', n)
    END AS message
FROM stepped
ORDER BY rank;
