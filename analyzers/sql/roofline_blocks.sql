-- Steps of a run in blocks of about $size activities, as temp table cost_block, so that memory does not grow with the run.
-- Activities without a step are in blocks of their own, numbered from −1 downwards.
-- block      number
-- step_id    step; NULL in blocks without one
-- first_id, last_id   kernel_id of the first and last activity of the step, or of the block where there is none
CREATE OR REPLACE TEMP TABLE cost_block AS
WITH counted AS (
    SELECT step_id, count(*) AS n, min(kernel_id) AS first_id, max(kernel_id) AS last_id
    FROM kernels WHERE run_id = $run_id AND valid AND step_id IS NOT NULL GROUP BY step_id
),
loose AS (
    SELECT kernel_id, -1 - (row_number() OVER (ORDER BY kernel_id) - 1) // $size AS block
    FROM kernels WHERE run_id = $run_id AND valid AND step_id IS NULL
)
SELECT
    CAST((sum(n) OVER (ORDER BY first_id ROWS UNBOUNDED PRECEDING) - n) // $size AS BIGINT) AS block, step_id, first_id, last_id
FROM counted
UNION ALL
SELECT block, NULL, min(kernel_id), max(kernel_id) FROM loose GROUP BY block
