-- One row per piece of device time without activity that starts in [$low, $high).
-- process   'rank R device D'
-- track     'idle'
-- cat       'stepscope'
-- nested    false
-- start_ns, end_ns   ns
-- name      JSON text: the cause
-- args      JSON object: detail, step_before, step_after (steps.seq)
SELECT
    format('rank {} device {}', g.rank, g.device) AS process, 'idle' AS track, 'stepscope' AS cat, false AS nested, g.start_ns,
    g.start_ns + g.dur_ns AS end_ns, to_json(coalesce(g.cause, 'not analyzed'))::VARCHAR AS name,
    json_merge_patch('{}', json_object('detail', g.detail, 'step_before', b.seq, 'step_after', a.seq))::VARCHAR AS args
FROM gaps AS g
LEFT JOIN steps AS b ON b.run_id = g.run_id AND b.step_id = g.step_before
LEFT JOIN steps AS a ON a.run_id = g.run_id AND a.step_id = g.step_after
WHERE g.run_id = $run_id AND g.dur_ns >= 0 AND g.start_ns >= $low AND g.start_ns < $high
ORDER BY g.start_ns, g.gap_id
