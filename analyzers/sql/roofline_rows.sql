-- One row per valid device activity of one block (cost_block) of a run, in the order of each device. $first_id and $last_id bound it.
-- kernel_id, rank, device, stream, step_id   as in kernels
-- gid            its group in cost_group
-- op_start_ns    ns; start of the operator it is a segment of (CPU engines), NULL otherwise
-- op_dur_ns      ns; that operator's duration
-- dur_ns, busy_ns, prefill_ns, decode_ns     ns
-- in_graph       launched by a graph launch
-- copied_bytes   bytes moved by a copy or fill, as recorded
WITH grouped AS (
    SELECT
        k.kernel_id, k.rank, k.device, k.stream, k.step_id, c.gid, k.kind, k.name, k.start_ns, k.dur_ns, k.busy_ns,
        k.prefill_ns, k.decode_ns, c.captured AS in_graph, k.bytes_copied
    FROM kernels AS k
    JOIN cost_group AS c
        ON c.kind = k.kind AND c.name IS NOT DISTINCT FROM k.name AND c.category IS NOT DISTINCT FROM k.category
        AND c.op_name IS NOT DISTINCT FROM CASE WHEN k.kind = 'cpu_op' THEN k.name ELSE k.op_name END
        AND c.op_shapes IS NOT DISTINCT FROM CAST(k.op_shapes AS VARCHAR)
        AND c.op_dtypes IS NOT DISTINCT FROM CAST(k.op_dtypes AS VARCHAR)
        AND c.captured = coalesce(k.in_graph, false)
    WHERE k.run_id = $run_id AND k.valid AND k.kernel_id BETWEEN $first_id AND $last_id
        AND CASE WHEN $block < 0 THEN k.step_id IS NULL ELSE k.step_id IN (SELECT step_id FROM cost_block WHERE block = $block) END
),
reach AS (SELECT min(start_ns) - 10_000_000_000 AS low_ns, max(start_ns) AS high_ns FROM grouped WHERE kind = 'cpu_op'),
opened AS (
    SELECT rank, tid, name, start_ns, dur_ns
    FROM host_events
    WHERE run_id = $run_id AND kind = 'op' AND start_ns BETWEEN (SELECT low_ns FROM reach) AND (SELECT high_ns FROM reach)
),
placed AS (
    SELECT g.kernel_id, o.start_ns AS op_start_ns, o.dur_ns AS op_dur_ns
    FROM (SELECT * FROM grouped WHERE kind = 'cpu_op') AS g
    ASOF JOIN opened AS o ON o.rank = g.rank AND o.tid = g.stream AND o.name = g.name AND o.start_ns <= g.start_ns
)
SELECT
    g.kernel_id, g.rank, g.device, g.stream, g.step_id, g.gid, p.op_start_ns, p.op_dur_ns, g.dur_ns, g.busy_ns, g.prefill_ns,
    g.decode_ns, g.in_graph, g.bytes_copied AS copied_bytes
FROM grouped AS g
LEFT JOIN placed AS p USING (kernel_id)
ORDER BY g.rank, g.device, g.start_ns, g.kernel_id
