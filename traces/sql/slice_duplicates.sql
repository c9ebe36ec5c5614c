-- One row per event that another slice of the same recording holds too: src, seq. stage.slice lists the slices: src, into_src,
-- first_ns, last_ns. Equal events within one slice are different events; of an event that one slice cut off, the longer
-- one stays.
WITH near AS (  -- only where slices overlap
    SELECT e.*, s.into_src, e.ts + f.shift_ns AS at_ns
    FROM stage.events AS e
    JOIN stage.slice AS s USING (src)
    JOIN stage.sources AS f USING (src)
    WHERE EXISTS (
        SELECT 1 FROM stage.slice AS o
        WHERE o.into_src = s.into_src AND o.src <> s.src AND e.ts + f.shift_ns BETWEEN o.first_ns AND o.last_ns
    )
),
named AS (
    SELECT n.src, n.seq, n.into_src, n.cat, t.text, n.pid, n.tid, n.at_ns, n.dur, n.corr, n.ext, n.device, n.stream
    FROM near AS n
    LEFT JOIN stage.strings AS t ON t.src = n.src AND t.id = n.name
),
counted AS (
    SELECT
        *, row_number() OVER (
            PARTITION BY src, cat, text, pid, tid, at_ns, corr, ext, device, stream ORDER BY dur DESC NULLS LAST, seq
        ) AS occurrence
    FROM named
)
SELECT src, seq
FROM counted
QUALIFY row_number() OVER (
    PARTITION BY into_src, cat, text, pid, tid, at_ns, corr, ext, device, stream, occurrence ORDER BY dur DESC NULLS LAST, src
) > 1;
