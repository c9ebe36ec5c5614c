-- stage.label_event: one row per step label, nested duplicates (two labels of one step) folded into the outermost window
-- with the most telling text; `labels` holds all of its texts. stage.label_form has the parsed distinct texts. Times in ns.
-- ProfilerStep ranges count only where the engine wrote no label of its own on that rank.
CREATE TABLE stage.label_event AS
WITH labelled AS (
    SELECT
        s.rank, e.pid, e.tid, e.src, e.seq, e.ts + s.shift_ns AS start_ns, e.ts + s.shift_ns + greatest(e.dur, 0) AS end_ns,
        n.label, l.detail, l.form
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    JOIN stage.label_name AS n ON n.src = e.src AND n.name = e.name
    JOIN stage.label_form AS l ON l.label = n.label
    WHERE e.cat = 13 AND s.role = 'trace' AND e.ts IS NOT NULL AND e.dur IS NOT NULL
    QUALIFY l.form <> 'profiler_step'
        OR count(*) FILTER (WHERE l.form <> 'profiler_step') OVER (PARTITION BY s.rank) = 0
),
opened AS (
    SELECT
        *,
        start_ns >= coalesce(
            max(end_ns) OVER (
                PARTITION BY rank, pid, tid ORDER BY start_ns, end_ns DESC, seq
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), start_ns
        ) AS opens
    FROM labelled
),
grouped AS (
    SELECT *, sum(opens::INTEGER) OVER (PARTITION BY rank, pid, tid ORDER BY start_ns, end_ns DESC, seq) AS step_no
    FROM opened
)
SELECT
    rank, pid, tid, step_no, min(start_ns) AS start_ns, max(end_ns) AS end_ns, count(*) AS n_labels,
    arg_max(label, (detail, -start_ns)) AS label, list_sort(list_distinct(list(label))) AS labels,
    'label' AS source
FROM grouped
GROUP BY ALL;
