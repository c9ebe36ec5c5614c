-- Check, two rows per rank: launches at the head and at the tail of the recording whose activities were not recorded.
-- value: ns of the device window before the first and after the last activity that the recording cannot speak for.
WITH recorded AS (
    SELECT rank, min(start_ns) FILTER (WHERE n_kernels > 0) AS first_ns, max(start_ns) FILTER (WHERE n_kernels > 0) AS last_ns
    FROM launches WHERE run_id = $run_id GROUP BY rank
),
missing AS (
    SELECT
        r.rank,
        count(l.launch_id) FILTER (WHERE l.start_ns < r.first_ns) AS n_head,
        count(l.launch_id) FILTER (WHERE l.start_ns > r.last_ns) AS n_tail
    FROM recorded AS r
    LEFT JOIN launches AS l
        ON l.run_id = $run_id AND l.rank = r.rank AND l.n_kernels = 0 AND NOT contains(coalesce(l.name, ''), 'HostFunc')
    WHERE r.first_ns IS NOT NULL
    GROUP BY r.rank
),
edges AS (
    SELECT
        d.rank, max(d.window_end_ns - d.window_start_ns) AS window_ns,
        max(greatest(k.first_ns - d.window_start_ns, 0)) AS head_ns, max(greatest(d.window_end_ns - k.last_ns, 0)) AS tail_ns
    FROM devices AS d
    JOIN (
        SELECT rank, device, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
        FROM kernels WHERE run_id = $run_id AND valid GROUP BY ALL
    ) AS k USING (rank, device)
    WHERE d.run_id = $run_id
    GROUP BY d.rank
),
sided AS (
    SELECT rank, 'head' AS side, n_head AS n, CASE WHEN n_head > 0 THEN head_ns ELSE 0 END AS lost_ns, window_ns FROM missing JOIN edges USING (rank)
    UNION ALL
    SELECT rank, 'tail', n_tail, CASE WHEN n_tail > 0 THEN tail_ns ELSE 0 END, window_ns FROM missing JOIN edges USING (rank)
)
SELECT
    rank, side || '_missing' AS check_id,
    CASE WHEN lost_ns > 0.05 * window_ns THEN 'withheld' WHEN n > 0 THEN 'warning' ELSE 'ok' END AS status,
    lost_ns::DOUBLE AS value, 0.05 * window_ns AS threshold,
    '["devices.idle_ns", "gaps"]' AS affects,
    CASE
        WHEN n = 0 THEN format('the {} of the recording is complete', side)
        WHEN side = 'head' THEN format(
            'the activities of the first {} launches were not recorded ({:.3f} ms of the window): a profiling session may lose its '
            || 'first records. Read steps from the first one with activities on', n, lost_ns / 1e6)
        ELSE format(
            'the activities of the last {} launches were not recorded ({:.3f} ms of the window): the recording ends before they ran, '
            || 'or its buffers were full', n, lost_ns / 1e6)
    END AS message
FROM sided
ORDER BY rank, check_id;
