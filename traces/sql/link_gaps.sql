-- gaps: one row per stretch of the device window without any activity; causes come with the analysis of idle time.
-- Then a row of devices with the busy time of each; step_idle.sql adds the rest: busy + idle + unrecorded = window.
INSERT INTO gaps
WITH activity AS (
    SELECT
        k.rank, k.device, k.step_id,
        greatest(k.start_ns, w.window_start_ns) AS s, least(k.start_ns + k.dur_ns, w.window_end_ns) AS e
    FROM kernels AS k
    JOIN stage.device_window AS w ON w.rank = k.rank AND w.device = k.device
    WHERE k.run_id = getvariable('run_id') AND k.valid
    UNION ALL
    SELECT rank, device, NULL, window_end_ns, window_end_ns + 1 FROM stage.device_window  -- closes the last gap
),
covered AS (
    SELECT
        rank, device, s, step_id,
        max(e) OVER before AS e_before, arg_max_null(step_id, e) OVER before AS step_before
    FROM activity
    WHERE e > s
    WINDOW before AS (PARTITION BY rank, device ORDER BY s, e DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT
    getvariable('run_id'), c.rank, c.device,
    row_number() OVER (ORDER BY c.rank, c.device, c.s),
    coalesce(c.e_before, w.window_start_ns), c.s - coalesce(c.e_before, w.window_start_ns),
    NULL, c.step_before, c.step_id, NULL
FROM covered AS c
JOIN stage.device_window AS w ON w.rank = c.rank AND w.device = c.device
WHERE c.s > coalesce(c.e_before, w.window_start_ns);

INSERT INTO devices (run_id, rank, device, window_start_ns, window_end_ns, busy_ns, idle_ns, unrecorded_ns)
SELECT
    getvariable('run_id'), w.rank, w.device, w.window_start_ns, w.window_end_ns, coalesce(k.busy_ns, 0), NULL, NULL
FROM stage.device_window AS w
LEFT JOIN (
    SELECT rank, device, sum(busy_ns)::BIGINT AS busy_ns FROM kernels WHERE run_id = getvariable('run_id') AND valid GROUP BY ALL
) AS k USING (rank, device)
ORDER BY w.rank, w.device;
