-- Adds to idle_piece the gaps that have one cause from end to end whatever the threads did: launched before they began, and no
-- time in them in which the engine had nothing to do. They leave idle_part; what stays is divided into blocks again. Under graphs
-- nearly all gaps are of this kind. Changes idle_piece and idle_part; no result.
CREATE OR REPLACE TEMP TABLE idle_launched AS
SELECT p.*
FROM idle_part AS p
ASOF LEFT JOIN idle_engine AS e ON e.start_ns < p.end_ns  -- stretches are disjoint: only the last one can reach into the gap
WHERE p.late_ns <= p.start_ns AND p.after_cause IS NOT NULL AND coalesce(e.end_ns <= p.start_ns, true);

INSERT INTO idle_piece
SELECT gap_id, rank, device, start_ns, end_ns, after_cause, after_detail FROM idle_launched;

CREATE OR REPLACE TEMP TABLE idle_part AS
SELECT
    * REPLACE (CAST((row_number() OVER (ORDER BY rank, device, start_ns) - 1) // getvariable('idle_block_size') AS BIGINT) AS block)
FROM idle_part
WHERE gap_id NOT IN (SELECT gap_id FROM idle_launched);

DROP TABLE temp.idle_launched;
