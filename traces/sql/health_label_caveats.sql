-- Check, one row per rank with steps whose label leaves open what is prefill and what decode, where no ledger tells (variable
-- phase_caveats: the caveats that say so). value: share of the labelled steps' device time in them, or of their number
-- where none was recorded, 0..1.
WITH labelled AS (
    SELECT
        rank, step_id, busy_ns, list_filter(from_json(caveats, '["VARCHAR"]'), lambda c: list_contains(getvariable('phase_caveats'), c)) AS open
    FROM steps
    WHERE run_id = $run_id AND source = 'label' AND caveats IS NOT NULL
),
counted AS (
    SELECT
        rank, count(*) AS n, count(*) FILTER (WHERE len(open) > 0) AS n_open,
        coalesce(sum(busy_ns) FILTER (WHERE len(open) > 0) / nullif(sum(busy_ns), 0), count(*) FILTER (WHERE len(open) > 0) / count(*)) AS part,
        list_sort(list_distinct(flatten(list(open)))) AS names
    FROM labelled
    GROUP BY rank
)
SELECT
    rank, 'label_caveats' AS check_id, 'warning' AS status, part AS value, 0::DOUBLE AS threshold,
    '["steps.kind", "steps.prefill_ns", "steps.decode_ns"]' AS affects,
    format('{} of {} labels, {:.1f} % of the steps'' time, leave open what is prefill and what decode ({}): speculation, mixed steps or '
        || 'what a preempted request computes again. A step ledger tells: record with `stepscope profile`', n_open, n, 100 * part,
        array_to_string(names, ', ')) AS message
FROM counted
WHERE n_open > 0;
