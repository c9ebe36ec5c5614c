-- One row per request that arrived in [$low, $high) and ended, followed by one per part of it that took time.
-- process   'requests: PASS'
-- track     'requests'
-- cat       'stepscope'
-- nested    true: a part, inside the request before it
-- start_ns, end_ns   ns
-- name      JSON text: the client's id (else the engine's); queue, prefill, decode
-- args      JSON object: request_id, session, turn, tokens, status, preemptions, joules; without what is not known
WITH timed AS (
    SELECT
        *, 'requests: ' || coalesce(pass, 'all') AS process, arrival_ns AS from_ns,
        greatest(arrival_ns, coalesce(finished_ns, last_token_ns), last_token_ns, first_token_ns) AS until_ns
    FROM requests
    WHERE
        run_id = $run_id AND arrival_ns >= $low AND arrival_ns < $high
        AND coalesce(finished_ns, last_token_ns, first_token_ns) IS NOT NULL
),
part AS (
    SELECT request_id, from_ns, 'queue' AS name, queued_ns AS start_ns, scheduled_ns AS end_ns, until_ns, process FROM timed
    UNION ALL
    SELECT request_id, from_ns, 'prefill', scheduled_ns, first_token_ns, until_ns, process FROM timed
    UNION ALL
    SELECT request_id, from_ns, 'decode', greatest(first_token_ns, scheduled_ns), last_token_ns, until_ns, process FROM timed
),
row AS (
    SELECT
        process, from_ns, request_id, false AS nested, from_ns AS start_ns, until_ns AS end_ns,
        to_json(coalesce(client_request_id, request_id))::VARCHAR AS name,
        json_merge_patch('{}', json_object(
            'request_id', request_id, 'session', session_id, 'turn', turn, 'prompt_tokens', prompt_tokens, 'cached_tokens', cached_tokens,
            'output_tokens', output_tokens, 'status', status, 'preemptions', n_preemptions,
            'energy_j', CASE WHEN isfinite(energy_j) THEN energy_j END
        ))::VARCHAR AS args
    FROM timed
    UNION ALL
    SELECT
        process, from_ns, request_id, true, greatest(start_ns, from_ns), least(end_ns, until_ns), to_json(name)::VARCHAR, '{}'
    FROM part
    WHERE start_ns IS NOT NULL AND end_ns IS NOT NULL AND least(end_ns, until_ns) > greatest(start_ns, from_ns)
)
SELECT process, 'requests' AS track, 'stepscope' AS cat, nested, start_ns, end_ns, name, args
FROM row
ORDER BY from_ns, request_id, nested, start_ns
