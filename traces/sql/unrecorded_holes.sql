-- One row per piece of a gap after the last event of one file of the rank and before the first one of the next: rank, device,
-- gap_id, start_ns, end_ns (ns). Reads stage.file_span.
WITH hole AS (
    SELECT rank, covered_ns AS start_ns, first_ns AS end_ns
    FROM (
        SELECT
            rank, first_ns,
            max(last_ns) OVER (PARTITION BY rank ORDER BY first_ns, last_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
        FROM stage.file_span
    )
    WHERE first_ns > covered_ns
)
SELECT g.rank, g.device, g.gap_id, greatest(g.start_ns, h.start_ns) AS start_ns, least(g.start_ns + g.dur_ns, h.end_ns) AS end_ns
FROM gaps AS g
JOIN hole AS h ON h.rank = g.rank AND h.start_ns < g.start_ns + g.dur_ns AND h.end_ns > g.start_ns
WHERE g.run_id = $run_id AND g.cause IS DISTINCT FROM 'unrecorded';
