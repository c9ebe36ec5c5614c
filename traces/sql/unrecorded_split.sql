-- Cuts the gaps of unrecorded_piece (unrecorded.py) at the ends of its pieces: covered parts get cause 'unrecorded' and
-- the reason as detail, the rest stays as it was. Totals of steps and devices follow from it (step_idle.sql).
CREATE OR REPLACE TEMP TABLE cut_gap AS
WITH covered AS (  -- pieces of a gap, disjoint
    SELECT
        rank, device, gap_id, why, end_ns,
        greatest(start_ns, coalesce(max(end_ns) OVER (
            PARTITION BY gap_id ORDER BY start_ns, end_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), start_ns)) AS start_ns
    FROM unrecorded_piece
),
piece AS (SELECT * FROM covered WHERE end_ns > start_ns),
rest AS (  -- what lies before, between and behind them
    SELECT
        g.gap_id, p.end_ns AS start_ns,
        coalesce(lead(p.start_ns) OVER (PARTITION BY g.gap_id ORDER BY p.start_ns, p.end_ns), g.start_ns + g.dur_ns) AS end_ns
    FROM gaps AS g
    JOIN (
        SELECT gap_id, start_ns, end_ns FROM piece
        UNION ALL
        SELECT gap_id, start_ns, start_ns FROM gaps WHERE run_id = getvariable('run_id')
            AND gap_id IN (SELECT gap_id FROM piece)
    ) AS p USING (gap_id)
    WHERE g.run_id = getvariable('run_id')
)
SELECT gap_id, start_ns, end_ns, why FROM piece
UNION ALL
SELECT gap_id, start_ns, end_ns, NULL FROM rest WHERE end_ns > start_ns;

CREATE OR REPLACE TEMP TABLE whole_gap AS
SELECT * FROM gaps WHERE run_id = getvariable('run_id') AND gap_id IN (SELECT gap_id FROM cut_gap);

DELETE FROM gaps WHERE run_id = getvariable('run_id') AND gap_id IN (SELECT gap_id FROM whole_gap);

INSERT INTO gaps (run_id, rank, device, gap_id, start_ns, dur_ns, cause, step_before, step_after, detail)
SELECT
    g.run_id, g.rank, g.device,
    CASE WHEN row_number() OVER part = 1 THEN g.gap_id  -- the first part keeps the id
        ELSE (SELECT max(gap_id) FROM (SELECT gap_id FROM gaps WHERE run_id = getvariable('run_id') UNION ALL SELECT gap_id FROM whole_gap))
            + row_number() OVER (ORDER BY c.start_ns, g.gap_id) END,
    c.start_ns, c.end_ns - c.start_ns,
    CASE WHEN c.why IS NULL THEN g.cause ELSE 'unrecorded' END,
    g.step_before, g.step_after,
    coalesce(c.why, g.detail)
FROM cut_gap AS c
JOIN whole_gap AS g USING (gap_id)
WINDOW part AS (PARTITION BY g.gap_id ORDER BY c.start_ns)
ORDER BY g.rank, g.device, c.start_ns;

DROP TABLE temp.cut_gap;
DROP TABLE temp.whole_gap;
