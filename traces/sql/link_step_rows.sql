-- steps: one row per step with its counts from the label (the ledger's overwrite them) and its device time. Times in ns.
INSERT INTO steps (
    run_id, rank, step_id, seq, label, source, kind, host_start_ns, host_end_ns, device_start_ns, device_end_ns, busy_ns, idle_ns, unrecorded_ns,
    n_kernels, n_launches, n_graph_launches, n_launches_without_kernel, graph_mode,
    prefill_reqs, prefill_tokens, prefill_kv_tokens, prefill_qq, prefill_qk, decode_reqs, decode_tokens, decode_kv_tokens, decode_qk,
    trusted, ledger_seq, caveats
)
WITH device AS (
    SELECT
        step_id, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns, sum(busy_ns)::BIGINT AS busy_ns, count(*) AS n,
        count(*) FILTER (WHERE in_graph) AS n_graph, count(*) FILTER (WHERE kind = 'kernel') AS n_real
    FROM kernels
    WHERE run_id = getvariable('run_id') AND valid AND step_id IS NOT NULL
    GROUP BY ALL
),
host AS (
    SELECT
        step_id, count(*) AS n, count(*) FILTER (WHERE is_graph) AS n_graph,
        count(*) FILTER (WHERE n_kernels = 0 AND name NOT LIKE '%HostFunc%') AS n_empty
    FROM launches
    WHERE run_id = getvariable('run_id') AND step_id IS NOT NULL
    GROUP BY ALL
),
idle AS (  -- of its device span, whoever ran before the gaps
    SELECT step_id, sum(high_ns - low_ns)::BIGINT AS idle_ns
    FROM (SELECT step_id, rank, device, min(low_ns) AS low_ns, max(high_ns) AS high_ns FROM stage.step_gap GROUP BY ALL)
    GROUP BY ALL
)
SELECT
    getvariable('run_id'), s.rank, s.step_id, s.seq, s.label, s.source, coalesce(l.kind, 'other'), s.host_start_ns, s.host_end_ns,
    d.first_ns, d.last_ns, d.busy_ns, i.idle_ns, i.idle_ns - i.idle_ns,
    coalesce(d.n, 0), coalesce(h.n, 0), coalesce(h.n_graph, 0), coalesce(h.n_empty, 0),
    CASE
        WHEN d.n IS NULL AND h.n IS NULL THEN NULL
        WHEN coalesce(h.n_graph, 0) = 0 THEN 'none'
        WHEN d.n_graph >= 0.8 * d.n_real AND h.n_graph <= 3 THEN 'full'
        ELSE 'piecewise'
    END,
    l.prefill_reqs, l.prefill_tokens, l.prefill_kv_tokens, l.prefill_qq, l.prefill_qk,
    l.decode_reqs, l.decode_tokens, l.decode_kv_tokens, l.decode_qk,
    true, s.ledger_seq, to_json(l.caveats)::VARCHAR
FROM stage.step AS s
LEFT JOIN stage.label AS l USING (labels)
LEFT JOIN device AS d USING (step_id)
LEFT JOIN host AS h USING (step_id)
LEFT JOIN idle AS i USING (step_id)
ORDER BY s.step_id;
