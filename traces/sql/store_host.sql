-- launches and host_events: the linked rows of the host, each once.
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
