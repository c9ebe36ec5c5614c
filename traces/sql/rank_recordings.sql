-- One row per file with device or host events: src, rank, trace_id, name, shift_ns (what makes its times absolute), first_ns,
-- last_ns (absolute ns) and the largest of its ids, beyond which ids are free: last_seq, last_string.
SELECT
    s.src, s.rank, s.trace_id, s.name, s.shift_ns, e.first_ns, e.last_ns, e.last_seq, coalesce(t.last_string, 0) AS last_string
FROM stage.sources AS s
JOIN (
    SELECT src, min(ts + shift_ns) AS first_ns, max(ts + shift_ns + greatest(coalesce(dur, 0), 0)) AS last_ns, max(seq) AS last_seq
    FROM stage.events
    JOIN stage.sources USING (src)
    GROUP BY src
) AS e USING (src)
LEFT JOIN (SELECT src, max(id) AS last_string FROM stage.strings GROUP BY src) AS t USING (src)
WHERE s.role = 'trace'
ORDER BY s.rank, e.first_ns, s.src;
