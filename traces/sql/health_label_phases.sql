-- Check, one row per rank with labels and a ledger: do the labels' phases agree with the ledger's truth? value: matched steps
-- whose label states other prefill or decode tokens than the ledger and does not say that it cannot know (variable
-- phase_caveats: the caveats that say so). Reads the staging tables.
WITH compared AS (
    SELECT
        s.rank, s.seq,
        coalesce(l.prefill_tokens <> t.prefill_tokens, false) OR coalesce(l.decode_tokens <> t.decode_tokens, false) AS differs,
        list_has_any(l.caveats, getvariable('phase_caveats')) AS said
    FROM stage.step AS s
    JOIN stage.label AS l USING (labels)
    JOIN steps AS t ON t.run_id = $run_id AND t.step_id = s.step_id
    WHERE s.source = 'ledger' AND (l.prefill_tokens IS NOT NULL OR l.decode_tokens IS NOT NULL)
)
SELECT
    rank, 'label_phases' AS check_id,
    CASE WHEN count(*) FILTER (WHERE differs AND NOT said) > 0 THEN 'warning' ELSE 'ok' END AS status,
    count(*) FILTER (WHERE differs AND NOT said)::DOUBLE AS value, 0::DOUBLE AS threshold, '["steps"]' AS affects,
    format('{} of {} labels state other phases than the ledger, which counts: {} of them say so themselves', count(*) FILTER (WHERE differs),
        count(*), count(*) FILTER (WHERE differs AND said)) AS message
FROM compared
GROUP BY rank;
