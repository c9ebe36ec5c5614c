-- Check, one row for a run with a ledger: did the hook inside the engine fail? value: failures it recorded.
SELECT
    NULL::INTEGER AS rank, 'hook_errors' AS check_id,
    CASE WHEN count(*) FILTER (WHERE kind = 'error') > 0 THEN 'warning' ELSE 'ok' END AS status,
    (count(*) FILTER (WHERE kind = 'error'))::DOUBLE AS value, 0::DOUBLE AS threshold, '["ledger_steps", "step_requests", "requests.queued_ns"]' AS affects,
    CASE
        WHEN count(*) FILTER (WHERE kind = 'error') = 0 THEN 'the hook recorded without a failure'
        ELSE format('the hook inside the engine failed {} times ({}); the engine went on, the ledger may be incomplete',
            count(*) FILTER (WHERE kind = 'error'), left(coalesce(any_value(text) FILTER (WHERE kind = 'error'), ''), 200))
    END AS message
FROM ledger_marks
WHERE run_id = $run_id
HAVING count(*) > 0;
