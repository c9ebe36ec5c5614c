-- stage.activity of a CPU engine: one row per exclusive segment of an operator on the compute thread. Times in ns.
-- Every start and end of an operator is a boundary; between two boundaries the innermost open operator runs. At nesting
-- depth d that is the last one which opened to depth d, so one window over the boundaries replaces a stack.
-- Where operators cross each other (rounding, torn files), the stretch under one root is done again by comparison: of all that
-- cover a segment, the one that began last.
INSERT INTO stage.compute_thread
SELECT rank, src, pid, tid
FROM (
    SELECT
        s.rank, e.src, e.pid, e.tid,
        count(*) FILTER (WHERE e.cat = 13 AND e.name IN (SELECT name FROM stage.label_name WHERE src = e.src)) AS labels,
        sum(e.dur) FILTER (WHERE e.cat = 10) AS op_ns
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    WHERE s.role = 'trace' AND e.cat IN (10, 13) AND e.ts IS NOT NULL AND e.dur IS NOT NULL
    GROUP BY ALL
)
WHERE op_ns > 0
QUALIFY row_number() OVER (PARTITION BY rank, src ORDER BY labels DESC, op_ns DESC, tid) = 1;

CREATE TABLE stage.cpu_op AS
SELECT
    row_number() OVER (ORDER BY s.rank, e.ts + s.shift_ns, e.dur DESC, e.seq) AS op_id,
    s.rank, e.src, e.name, e.shapes, e.dtypes, e.ts + s.shift_ns AS start_ns, e.ts + s.shift_ns + e.dur AS end_ns, e.tid
FROM stage.events AS e
JOIN stage.sources AS s USING (src)
JOIN stage.compute_thread AS c ON c.src = e.src AND c.pid = e.pid AND c.tid = e.tid
WHERE s.role = 'trace' AND e.cat = 10 AND e.ts IS NOT NULL AND e.dur > 0;

CREATE TABLE stage.segment AS
WITH boundary AS (
    SELECT rank, op_id, start_ns AS t, 1 AS delta, -end_ns AS inner_first FROM stage.cpu_op
    UNION ALL
    SELECT rank, op_id, end_ns, -1, -start_ns FROM stage.cpu_op
),
nested AS (
    SELECT
        *,
        sum(delta) OVER ordered AS depth,
        lead(t) OVER ordered AS next_t,
        row_number() OVER ordered AS pos
    FROM boundary
    WINDOW ordered AS (PARTITION BY rank ORDER BY t, delta, inner_first, op_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
owned AS MATERIALIZED (
    SELECT
        rank, op_id, delta, t, next_t, depth,
        last_value(CASE WHEN delta = 1 THEN op_id END IGNORE NULLS) OVER at_depth AS owner_id,
        last_value(CASE WHEN delta = 1 AND depth = 1 THEN op_id END IGNORE NULLS) OVER in_order AS root_id
    FROM nested
    WINDOW
        at_depth AS (PARTITION BY rank, depth ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
        in_order AS (PARTITION BY rank ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
skewed AS (  -- not as deep behind it as before it: it crosses another one (of two that cross, the first one is always found)
    SELECT op_id FROM owned GROUP BY op_id HAVING sum(CASE delta WHEN 1 THEN depth - 1 ELSE -depth END) <> 0
)
SELECT
    rank, t AS start_ns, next_t AS end_ns, owner_id AS op_id, root_id, depth,
    root_id IN (SELECT root_id FROM owned WHERE delta = 1 AND op_id IN (SELECT op_id FROM skewed)) AS crossed
FROM owned
WHERE depth > 0 AND next_t > t;

CREATE TABLE stage.crossed AS
SELECT
    s.rank, s.start_ns,
    arg_max(o.op_id, (o.start_ns, o.op_id)) AS op_id, arg_min(o.op_id, (o.start_ns, o.op_id)) AS root_id
FROM stage.segment AS s
JOIN stage.cpu_op AS o ON o.rank = s.rank AND o.start_ns <= s.start_ns AND o.end_ns >= s.end_ns AND o.op_id >= s.root_id
WHERE s.crossed
GROUP BY ALL;

CREATE TABLE stage.activity AS
SELECT
    row_number() OVER (ORDER BY s.rank, s.start_ns) AS kernel_id,
    s.rank,
    0 AS device,
    o.tid AS stream,
    'cpu_op' AS kind,
    o.src,
    o.name,
    s.start_ns,
    s.end_ns - s.start_ns AS dur_ns,
    NULL::BIGINT AS corr,
    NULL::BIGINT AS ext,
    NULL::BIGINT AS bytes,
    root.name AS root_name,
    o.shapes,
    o.dtypes,
    true AS valid,
    NULL::VARCHAR AS invalid_reason
FROM stage.segment AS s
LEFT JOIN stage.crossed AS x ON x.rank = s.rank AND x.start_ns = s.start_ns
JOIN stage.cpu_op AS o ON o.op_id = coalesce(x.op_id, s.op_id)
LEFT JOIN stage.cpu_op AS root ON root.op_id = coalesce(x.root_id, s.root_id);
