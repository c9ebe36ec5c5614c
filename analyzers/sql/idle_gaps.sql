-- idle_gap: one row per gap that is idle: pieces of an earlier analysis are put together again, unrecorded ones left alone.
-- Pieces of one gap touch; two gaps never do, an activity or an unrecorded piece lies between them.
-- gap_id, rank, device, start_ns, end_ns (ns), step_before, step_after; block: number of the block of work it belongs to.
CREATE OR REPLACE TEMP TABLE idle_gap AS
WITH piece AS (
    SELECT
        gap_id, rank, device, start_ns, start_ns + dur_ns AS end_ns, step_before, step_after,
        coalesce(start_ns > lag(start_ns + dur_ns) OVER (PARTITION BY rank, device ORDER BY start_ns), true) AS opens
    FROM gaps
    WHERE run_id = getvariable('run_id') AND cause IS DISTINCT FROM 'unrecorded'
),
numbered AS (
    SELECT *, sum(opens::INTEGER) OVER (PARTITION BY rank, device ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS number FROM piece
),
whole AS (
    SELECT
        min(gap_id) AS gap_id, rank, device, min(start_ns) AS start_ns, max(end_ns) AS end_ns, any_value(step_before) AS step_before,
        any_value(step_after) AS step_after
    FROM numbered
    GROUP BY rank, device, number
)
SELECT *, CAST((row_number() OVER (ORDER BY rank, device, start_ns) - 1) // getvariable('idle_block_size') AS BIGINT) AS block
FROM whole;
