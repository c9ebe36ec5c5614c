-- Launches of a graph-capture trace that is in the staging tables: one row per kernel put into a graph, in order.
-- graph        the engine's mark, such as capture_32_FULL
-- position     from 0 within the graph
-- corr         correlation id of the launch
-- op_name, op_shapes, op_dtypes   operator that launched it, its operands; NULL where none is known
WITH mark AS (
    SELECT e.src, e.pid, e.tid, t.text AS graph, e.ts AS start_ns, e.ts + e.dur AS end_ns
    FROM stage.events AS e
    JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name
    WHERE e.cat = 13 AND t.text LIKE 'capture\_%' ESCAPE '\' AND e.dur > 0
),
launch AS (
    SELECT e.src, e.pid, e.tid, e.seq, e.ts, e.corr, e.ext
    FROM stage.events AS e
    JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name
    WHERE e.cat IN (11, 12) AND t.text ILIKE '%launch%'
),
op AS (
    SELECT e.src, e.ext, n.text AS name, s.text AS shapes, d.text AS dtypes
    FROM stage.events AS e
    JOIN stage.strings AS n ON n.src = e.src AND n.id = e.name
    LEFT JOIN stage.strings AS s ON s.src = e.src AND s.id = e.shapes
    LEFT JOIN stage.strings AS d ON d.src = e.src AND d.id = e.dtypes
    WHERE e.cat = 10 AND e.ext IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY e.src, e.ext ORDER BY e.ts DESC) = 1
)
SELECT
    m.graph, row_number() OVER (PARTITION BY m.src, m.graph, m.start_ns ORDER BY l.ts, l.seq) - 1 AS position, l.corr,
    op.name AS op_name, op.shapes AS op_shapes, op.dtypes AS op_dtypes
FROM launch AS l
JOIN mark AS m ON m.src = l.src AND m.pid = l.pid AND l.ts BETWEEN m.start_ns AND m.end_ns
LEFT JOIN op ON op.src = l.src AND op.ext = l.ext
ORDER BY m.graph, position
