-- Check, one row per rank and kind of fault: activities that no sum uses. value: activities.
WITH faulty AS (
    SELECT
        rank, dur_ns, name,
        CASE
            WHEN starts_with(invalid_reason, 'lies') THEN 'displaced_records'
            WHEN starts_with(invalid_reason, 'ends') THEN 'stream_overrun'
            WHEN starts_with(invalid_reason, 'fills') THEN 'giant_activity'
            ELSE 'malformed_times'
        END AS check_id,
        invalid_reason
    FROM kernels
    WHERE run_id = $run_id AND NOT valid
),
summed AS (
    SELECT rank, check_id, count(*) AS n, max(dur_ns) AS longest_ns, mode(invalid_reason) AS reason, arg_max(name, dur_ns) AS longest
    FROM faulty
    GROUP BY ALL
),
ranks AS (SELECT DISTINCT rank FROM kernels WHERE run_id = $run_id),
kinds AS (SELECT unnest(['malformed_times', 'displaced_records', 'stream_overrun', 'giant_activity']) AS check_id)
SELECT
    r.rank, k.check_id,
    CASE WHEN s.n > 0 THEN 'warning' ELSE 'ok' END AS status,
    coalesce(s.n, 0)::DOUBLE AS value, 0::DOUBLE AS threshold,
    '["kernels", "devices.busy_ns"]' AS affects,
    CASE
        WHEN s.n IS NULL THEN 'none'
        ELSE format('{} {} left out of every sum ({}; longest {:.3f} ms: {})',
            s.n, CASE WHEN s.n = 1 THEN 'activity is' ELSE 'activities are' END, s.reason, s.longest_ns / 1e6,
            coalesce(left(s.longest, 60), 'without a name'))
            || CASE k.check_id
                WHEN 'displaced_records' THEN '. The window begins with the first record that fits; the first profiling session of a process does not have this'
                WHEN 'giant_activity' THEN '. Its end is not to be believed: record again if steps lack activities'
                ELSE '' END
    END AS message
FROM ranks AS r
CROSS JOIN kinds AS k
LEFT JOIN summed AS s ON s.rank = r.rank AND s.check_id = k.check_id
ORDER BY r.rank, k.check_id;
