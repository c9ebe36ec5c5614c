-- kernels: the linked activities with their texts, one row each.
INSERT INTO kernels (
    run_id, rank, device, stream, kernel_id, kind, name, dtype, start_ns, dur_ns, busy_ns, launch_id, in_graph, step_id, step_link,
    op_name, op_shapes, op_dtypes, bytes_copied, valid, invalid_reason
)
WITH named AS (  -- external ids that activities, or the launches behind them, carry
    SELECT DISTINCT a.src, coalesce(a.ext, c.ext) AS ext
    FROM stage.activity AS a
    LEFT JOIN stage.launch AS c ON c.src = a.src AND c.corr = a.corr
    WHERE a.kind <> 'cpu_op' AND coalesce(a.ext, c.ext) IS NOT NULL
),
op AS (  -- the operators these name
    SELECT e.src, e.ext, any_value(e.name) AS name, any_value(e.shapes) AS shapes, any_value(e.dtypes) AS dtypes
    FROM stage.events AS e
    SEMI JOIN named AS n ON n.src = e.src AND n.ext = e.ext
    WHERE e.cat = 10 AND e.ext IS NOT NULL
    GROUP BY ALL
),
written AS MATERIALIZED (  -- texts that a JSON column may hold, checked once each and not once per row
    SELECT src, id, text::JSON AS value FROM stage.strings WHERE starts_with(text, '[') AND json_valid(text)
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
    sh.value, dt.value,
    j.bytes, j.valid, j.invalid_reason
FROM joined AS j
LEFT JOIN stage.strings AS n ON n.src = j.src AND n.id = j.name
LEFT JOIN stage.strings AS o ON o.src = j.src AND o.id = j.op_id
LEFT JOIN written AS sh ON sh.src = j.src AND sh.id = j.shapes_id
LEFT JOIN written AS dt ON dt.src = j.src AND dt.id = j.dtypes_id;
