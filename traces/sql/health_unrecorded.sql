-- Check, one row per rank with devices: how much of the device windows can the recording not speak for? value: share, 0..1.
-- Idle time is withheld where that is more than what is left as idle and over a hundredth of the window; below a thousandth nothing is said. Time between two
-- files is no reason to: what is left as idle is then that of the recorded time.
WITH part AS (
    SELECT rank, detail, sum(dur_ns)::BIGINT AS ns FROM gaps WHERE run_id = $run_id AND cause = 'unrecorded' GROUP BY ALL
),
parts AS (
    SELECT rank, sum(ns) FILTER (WHERE detail <> 'between two files')::BIGINT AS doubtful_ns,
        string_agg(format('{:.3f} ms {}', ns / 1e6, detail), '; ' ORDER BY ns DESC) AS what,
        arg_max(detail, ns) AS main
    FROM part
    GROUP BY rank
),
total AS (
    SELECT rank, sum(window_end_ns - window_start_ns)::BIGINT AS window_ns, sum(idle_ns)::BIGINT AS idle_ns, sum(unrecorded_ns)::BIGINT AS ns
    FROM devices WHERE run_id = $run_id GROUP BY rank
)
SELECT
    t.rank, 'unrecorded' AS check_id,
    CASE WHEN p.doubtful_ns > t.idle_ns AND p.doubtful_ns > 0.01 * t.window_ns THEN 'withheld' WHEN t.ns > 0.001 * t.window_ns THEN 'warning' ELSE 'ok' END AS status,
    CASE WHEN t.window_ns > 0 THEN t.ns / t.window_ns END AS value, 0.01::DOUBLE AS threshold,
    '["devices.idle_ns", "steps.idle_ns"]' AS affects,
    CASE
        WHEN t.ns > 0.001 * t.window_ns THEN format(
            '{:.1f} % of the window is not recorded and is not idle: {}. {}', 100 * t.ns / t.window_ns, p.what,
            CASE p.main
                WHEN 'between two files' THEN 'Idle time is that of the recorded time'
                WHEN 'launches without kernel records' THEN 'See the checks graph_kernels and launch_kernels'
                ELSE 'This may be a slice: the device may have been busy with work that lies outside. '
                    || CASE WHEN f.files > 1 THEN 'If there are more files of this recording than these ' || f.files || ', ingest all of them together'
                        ELSE 'Ingest all files of the recording together' END
            END)
        ELSE 'the recording speaks for the whole window'
    END AS message
FROM total AS t
LEFT JOIN parts AS p USING (rank)
LEFT JOIN (SELECT rank, count(*) AS files FROM sources WHERE run_id = $run_id AND role = 'trace' GROUP BY rank) AS f USING (rank)
ORDER BY t.rank;
