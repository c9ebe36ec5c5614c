-- stage.label_event of ranks without labels, from the Python frames of the engine's step function: one row per outermost
-- frame of the thread that launches most work. Times in ns.
INSERT INTO stage.label_event
WITH frame AS (
    SELECT s.rank, e.pid, e.tid, e.seq, e.ts + s.shift_ns AS start_ns, e.ts + s.shift_ns + greatest(e.dur, 0) AS end_ns, t.text AS label
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name
    WHERE e.cat = 14 AND s.role = 'trace' AND e.ts IS NOT NULL AND e.dur IS NOT NULL
        AND regexp_matches(t.text, '(^|[: .])(execute_model|run_batch|forward_batch_generation)$')
        AND s.rank NOT IN (SELECT rank FROM stage.label_event)
),
thread AS (
    SELECT f.rank, f.pid, f.tid
    FROM (SELECT rank, pid, tid, count(*) AS frames FROM frame GROUP BY ALL) AS f
    LEFT JOIN (SELECT rank, pid, tid, count(*) AS launches FROM stage.launch GROUP BY ALL) AS l USING (rank, pid, tid)
    QUALIFY row_number() OVER (PARTITION BY f.rank ORDER BY coalesce(l.launches, 0) DESC, f.frames DESC, f.tid) = 1
),
opened AS (
    SELECT
        f.*,
        f.start_ns >= coalesce(max(f.end_ns) OVER (
            PARTITION BY f.rank ORDER BY f.start_ns, f.end_ns DESC, f.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), f.start_ns) AS opens
    FROM frame AS f
    JOIN thread USING (rank, pid, tid)
)
SELECT rank, pid, tid, row_number() OVER (PARTITION BY rank ORDER BY start_ns), start_ns, end_ns, 1, NULL, [], 'python'
FROM opened AS o
WHERE o.opens
    AND (  -- a frame that launches nothing on a device is none of its steps
        NOT EXISTS (SELECT 1 FROM stage.launch AS l WHERE l.rank = o.rank)
        OR EXISTS (
            SELECT 1 FROM stage.launch AS l
            WHERE l.rank = o.rank AND l.tid = o.tid AND l.pid = o.pid AND l.start_ns BETWEEN o.start_ns AND o.end_ns
        )
    );
