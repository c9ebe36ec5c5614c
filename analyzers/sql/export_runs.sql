-- One row per stretch of a device with one phase, and with one bound: activities in order of their start, of one step, each less
-- than 20 µs after the end of the one before, of those that start in [$low, $high). A stretch ends where the next one starts.
-- process   'rank R device D'
-- track     'phase' | 'bound'
-- cat       'stepscope'
-- nested    false
-- start_ns, end_ns   ns
-- name      JSON text: prefill, decode, prefill + decode, other; the bounds of the data dictionary
-- args      JSON object: step (steps.seq), activities, busy_ns
WITH activity AS (
    SELECT
        rank, device, step_id, kernel_id, start_ns, start_ns + dur_ns AS end_ns, busy_ns, bound,
        CASE
            WHEN prefill_ns > 0 AND decode_ns > 0 THEN 'prefill + decode' WHEN prefill_ns > 0 THEN 'prefill'
            WHEN decode_ns > 0 THEN 'decode' WHEN step_id IS NOT NULL AND prefill_ns = 0 THEN 'other' END AS phase
    FROM kernels
    WHERE run_id = $run_id AND valid AND busy_ns > 0 AND dur_ns >= 0 AND start_ns >= $low AND start_ns < $high
),
marked AS (
    SELECT *, 'phase' AS track, phase AS value FROM activity WHERE phase IS NOT NULL
    UNION ALL
    SELECT *, 'bound', bound FROM activity WHERE bound IS NOT NULL
),
compared AS (
    SELECT
        *, (
            lag(value) OVER (PARTITION BY rank, device, track ORDER BY start_ns, kernel_id) = value
            AND lag(coalesce(step_id, -1)) OVER (PARTITION BY rank, device, track ORDER BY start_ns, kernel_id) = coalesce(step_id, -1)
            AND start_ns - lag(end_ns) OVER (PARTITION BY rank, device, track ORDER BY start_ns, kernel_id) < 20000
        ) IS NOT TRUE AS begins
    FROM marked
),
numbered AS (
    SELECT *, sum(begins::INTEGER) OVER (
        PARTITION BY rank, device, track ORDER BY start_ns, kernel_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS run
    FROM compared
),
stretch AS (
    SELECT
        rank, device, track, run, any_value(value) AS value, any_value(step_id) AS step_id, min(start_ns) AS start_ns,
        max(end_ns) AS last_ns, count(*) AS activities, sum(busy_ns)::BIGINT AS busy_ns
    FROM numbered
    GROUP BY rank, device, track, run
)
SELECT
    format('rank {} device {}', t.rank, t.device) AS process, t.track, 'stepscope' AS cat, false AS nested, t.start_ns,
    least(t.last_ns, $high, lead(t.start_ns) OVER (PARTITION BY t.rank, t.device, t.track ORDER BY t.run)) AS end_ns,
    to_json(t.value)::VARCHAR AS name,
    json_merge_patch('{}', json_object('step', s.seq, 'activities', t.activities, 'busy_ns', t.busy_ns))::VARCHAR AS args
FROM stretch AS t
LEFT JOIN steps AS s ON s.run_id = $run_id AND s.step_id = t.step_id
ORDER BY t.start_ns, t.track, t.rank, t.device
