-- One row per step and place, of steps whose host window starts in [$low, $high): the host window, and the span of its
-- activities on the device.
-- process   'rank R steps'
-- track     'host' | 'device'
-- cat       'stepscope'
-- nested    false
-- start_ns, end_ns   ns
-- name      JSON text: the kind
-- args      JSON object: step (steps.seq), label, tokens, requests, times in ns, bound, side, roof_fraction; without what is not known
WITH placed AS (
    SELECT 'host' AS track, host_start_ns AS start_ns, host_end_ns AS end_ns, * FROM steps
    UNION ALL
    SELECT 'device', device_start_ns, device_end_ns, * FROM steps
)
SELECT
    format('rank {} steps', rank) AS process, track, 'stepscope' AS cat, false AS nested, start_ns, end_ns,
    to_json(coalesce(kind, 'other'))::VARCHAR AS name,
    json_merge_patch('{}', json_object(
        'step', seq, 'label', label, 'source', source, 'prefill_tokens', prefill_tokens, 'decode_tokens', decode_tokens,
        'prefill_reqs', prefill_reqs, 'decode_reqs', decode_reqs, 'busy_ns', busy_ns, 'idle_ns', idle_ns,
        'prefill_ns', prefill_ns, 'decode_ns', decode_ns, 'interference_ns', interference_ns, 'graph_mode', graph_mode,
        'bound', bound, 'side', side, 'roof_fraction', CASE WHEN isfinite(roof_fraction) THEN round(roof_fraction, 4) END
    ))::VARCHAR AS args
FROM placed
WHERE run_id = $run_id AND end_ns >= start_ns AND start_ns >= $low AND start_ns < $high
ORDER BY start_ns, track, rank, step_id
