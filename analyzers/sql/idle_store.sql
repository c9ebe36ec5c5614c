-- gaps: replaces the idle rows of a run by the pieces of idle_piece, each with its cause; unrecorded rows stay. No result.
-- The first piece of a gap keeps its id; the others are numbered behind the largest one, in order of time.
CREATE OR REPLACE TEMP TABLE idle_kept AS
SELECT max(gap_id) AS last_id
FROM (SELECT gap_id FROM idle_gap UNION ALL SELECT gap_id FROM gaps WHERE run_id = getvariable('run_id') AND cause = 'unrecorded');

DELETE FROM gaps WHERE run_id = getvariable('run_id') AND cause IS DISTINCT FROM 'unrecorded';

INSERT INTO gaps (run_id, rank, device, gap_id, start_ns, dur_ns, cause, step_before, step_after, detail)
WITH placed AS (
    SELECT p.*, g.step_before, g.step_after, p.start_ns = g.start_ns AS leads
    FROM idle_piece AS p
    JOIN idle_gap AS g USING (gap_id)
)
SELECT
    getvariable('run_id'), rank, device,
    CASE WHEN leads THEN gap_id ELSE (SELECT last_id FROM idle_kept) + row_number() OVER (PARTITION BY leads ORDER BY rank, device, start_ns) END,
    start_ns, end_ns - start_ns, cause, step_before, step_after, detail
FROM placed
ORDER BY rank, device, start_ns;

DROP TABLE temp.idle_kept;
