-- Check, one row per rank with labels and a ledger: are they the same steps? value: share of labelled steps and ledger steps
-- of the window that have their counterpart with the same token count, 0..1. Reads the staging tables.
WITH labelled AS (
    SELECT s.rank, s.seq, s.source = 'ledger' AS matched
    FROM stage.step AS s
    JOIN stage.label AS l USING (labels)
    WHERE l.total_tokens IS DISTINCT FROM 0
),
own AS (
    SELECT
        g.seq, EXISTS (SELECT 1 FROM stage.step AS s WHERE s.ledger_pid = g.pid AND s.ledger_seq = g.seq) AS matched
    FROM stage.ledger_steps AS g
    JOIN runs AS r ON r.run_id = $run_id
    WHERE g.total_tokens > 0 AND g.sched_start_ns >= r.window_start_ns AND g.result_end_ns <= r.window_end_ns
),
counted AS (
    SELECT
        rank, count(*) + any_value(o.n) AS n, count(*) FILTER (WHERE matched) + any_value(o.n_matched) AS n_matched,
        list(seq ORDER BY seq) FILTER (WHERE NOT matched) AS lost, any_value(o.lost) AS own_lost
    FROM labelled
    CROSS JOIN (
        SELECT count(*) AS n, count(*) FILTER (WHERE matched) AS n_matched, list(seq ORDER BY seq) FILTER (WHERE NOT matched) AS lost FROM own
    ) AS o
    GROUP BY rank
)
SELECT
    rank, 'ledger_match' AS check_id, CASE WHEN n_matched >= 0.99 * n THEN 'ok' ELSE 'warning' END AS status,
    n_matched / n AS value, 0.99::DOUBLE AS threshold, '["steps", "step_requests"]' AS affects,
    CASE
        WHEN lost IS NULL AND own_lost IS NULL THEN 'labels and ledger are the same steps with the same token counts'
        ELSE format('{} of {} step records of labels and ledger have no counterpart (labels {}, ledger {}): their phases come from one source '
            || 'only. Record again if there are many', n - n_matched, n, coalesce(lost[1:8], [])::VARCHAR, coalesce(own_lost[1:8], [])::VARCHAR)
    END AS message
FROM counted
WHERE EXISTS (SELECT 1 FROM stage.ledger_steps);
