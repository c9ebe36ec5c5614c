-- One row: mixed steps with device time that are not divided, all mixed steps, and the share of the first in the busy time of steps.
-- unsplit, mixed   steps
-- share            0..1
SELECT
    count(*) FILTER (WHERE kind = 'mixed' AND busy_ns > 0 AND prefill_ns IS NULL) AS unsplit,
    count(*) FILTER (WHERE kind = 'mixed') AS mixed,
    coalesce(sum(busy_ns) FILTER (WHERE kind = 'mixed' AND prefill_ns IS NULL) / nullif(sum(busy_ns), 0), 0)::DOUBLE AS share
FROM steps
WHERE run_id = $run_id
