-- Check, one row, for a run of several ranks: do process ids repeat across ranks? value: process ids that do.
WITH seen AS (
    SELECT DISTINCT rank, pid FROM host_events WHERE run_id = $run_id AND pid IS NOT NULL
    UNION
    SELECT DISTINCT rank, pid FROM launches WHERE run_id = $run_id AND pid IS NOT NULL
),
repeated AS (SELECT pid FROM seen GROUP BY pid HAVING count(DISTINCT rank) > 1)
SELECT
    NULL::INTEGER AS rank, 'pid_clash' AS check_id, 'ok' AS status,
    (SELECT count(*) FROM repeated)::DOUBLE AS value, 0::DOUBLE AS threshold,
    '[]' AS affects,
    CASE
        WHEN (SELECT count(*) FROM repeated) = 0 THEN 'every process id belongs to one rank'
        ELSE format('{} process ids occur in several ranks (containers number their own): processes are kept apart by rank', (SELECT count(*) FROM repeated))
    END AS message;
