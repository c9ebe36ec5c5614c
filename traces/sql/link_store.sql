-- Writes the linked rows into the tables of the data contract, each once.
INSERT INTO kernels (
    run_id, rank, device, stream, kernel_id, kind, name, dtype, start_ns, dur_ns, busy_ns, launch_id, in_graph, step_id, step_link,
    op_name, op_shapes, op_dtypes, bytes_copied, valid, invalid_reason
)
WITH op AS (  -- the operator an activity's external id names
    SELECT src, ext, any_value(name) AS name, any_value(shapes) AS shapes, any_value(dtypes) AS dtypes
    FROM stage.events
    WHERE cat = 10 AND ext IS NOT NULL
    GROUP BY ALL
),
joined AS (
    SELECT
        a.*, l.launch_id, l.is_graph, l.step_id, l.step_link, p.busy_ns,
        coalesce(a.root_name, o.name) AS op_id, coalesce(a.shapes, o.shapes) AS shapes_id, coalesce(a.dtypes, o.dtypes) AS dtypes_id
    FROM stage.activity AS a
    JOIN stage.linked AS l USING (kernel_id)
    LEFT JOIN stage.part AS p USING (kernel_id)
    LEFT JOIN stage.launch AS c ON c.launch_id = l.launch_id
    LEFT JOIN op AS o ON o.src = a.src AND o.ext = coalesce(a.ext, c.ext)
)
SELECT
    getvariable('run_id'), j.rank, j.device, j.stream, j.kernel_id, j.kind, n.text, NULL, j.start_ns, j.dur_ns, coalesce(j.busy_ns, 0),
    j.launch_id, coalesce(j.is_graph, false), j.step_id, j.step_link, o.text,
    CASE WHEN json_valid(sh.text) THEN sh.text END, CASE WHEN json_valid(dt.text) THEN dt.text END,
    j.bytes, j.valid, j.invalid_reason
FROM joined AS j
LEFT JOIN stage.strings AS n ON n.src = j.src AND n.id = j.name
LEFT JOIN stage.strings AS o ON o.src = j.src AND o.id = j.op_id
LEFT JOIN stage.strings AS sh ON sh.src = j.src AND sh.id = j.shapes_id
LEFT JOIN stage.strings AS dt ON dt.src = j.src AND dt.id = j.dtypes_id;

INSERT INTO launches
SELECT
    getvariable('run_id'), l.rank, l.launch_id, l.pid, l.tid, l.name, l.start_ns, l.dur_ns, l.corr, l.is_graph,
    coalesce(l.n_kernels, 0), w.step_id
FROM stage.launch AS l
LEFT JOIN stage.launch_step AS w USING (launch_id)
ORDER BY l.launch_id;

INSERT INTO host_events
SELECT
    getvariable('run_id'), s.rank, e.pid, e.tid, e.ts + s.shift_ns, e.dur,
    CASE WHEN e.cat IN (11, 12, 16) THEN 'runtime' WHEN e.cat = 10 THEN 'op' WHEN e.cat = 14 THEN 'python' ELSE 'annotation' END,
    n.text
FROM stage.events AS e
JOIN stage.sources AS s USING (src)
LEFT JOIN stage.strings AS n ON n.src = e.src AND n.id = e.name
WHERE s.role = 'trace' AND e.cat IN (10, 11, 12, 13, 14, 16) AND e.ts IS NOT NULL AND e.dur IS NOT NULL;
