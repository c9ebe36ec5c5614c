-- Check, up to four rows where sensors were sampled: is there power (value: samples with power or energy), do the samples
-- overlap the run (value: share of the run's window between the first and the last sample), is their clock known and did every
-- series last (value: notes of the readers). Reads stage.sources and stage.namesake.
WITH sampled AS (
    SELECT
        count(*) AS n, count(coalesce(power_w, power_instant_w, energy_j)) AS n_power, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns,
        count(cpu_util) AS n_cpu
    FROM telemetry
    WHERE run_id = $run_id
),
run AS (
    SELECT min(window_start_ns) AS start_ns, max(window_end_ns) AS end_ns FROM devices WHERE run_id = $run_id
),
shared AS (
    SELECT
        s.*, r.start_ns, r.end_ns,
        greatest(0, least(s.last_ns, r.end_ns) - greatest(s.first_ns, r.start_ns)) / nullif(r.end_ns - r.start_ns, 0) AS covered,
        -- by which quarter of an hour the log would have to be moved, for one written in another time zone
        round(((s.first_ns + s.last_ns) / 2 - (r.start_ns + r.end_ns) / 2) / 9e11) * 0.25 AS off_hours
    FROM sampled AS s, run AS r
),
notes AS (
    SELECT s.name, format('its device {} ({}) is another one than that of the first log: left out, ingest each machine by itself', n.device, n.uuid)
        AS note
    FROM stage.namesake AS n
    JOIN stage.sources AS s USING (src)
    UNION ALL
    SELECT name, unnest(CAST(json_extract(meta, '$.notes') AS VARCHAR[])) AS note FROM stage.sources WHERE role = 'telemetry'
)
SELECT
    NULL::INTEGER AS rank, 'telemetry_power' AS check_id,
    CASE WHEN n_power > 0 OR n_cpu > 0 THEN 'ok' ELSE 'warning' END AS status,
    n_power::DOUBLE AS value, 1::DOUBLE AS threshold, '["telemetry.power_w", "telemetry.energy_j"]' AS affects,
    CASE
        WHEN n_power > 0 THEN format('{} of {} samples of the sensors have power or energy', n_power, n)
        WHEN n_cpu > 0 THEN 'no power: RAPL cannot be read here (root may on most machines), so energies are not known'
        ELSE 'no sample has power or energy: record with the power columns of the sensor, or energies are not known'
    END AS message
FROM shared
WHERE n > 0
UNION ALL
SELECT
    NULL, 'telemetry_overlap', CASE WHEN covered > 0 THEN 'ok' ELSE 'warning' END, covered, 0,
    '["telemetry", "execution_idle"]',
    CASE
        WHEN covered > 0 THEN format('samples of the sensors span {:.0f} % of the window', 100 * covered)
        WHEN abs(off_hours) BETWEEN 0.25 AND 14 THEN format(
            'no sample of the sensors lies in the window: the log is {:.2f} h {} it. If its times are local ones, ingest again with '
            || '--utc-offset {}{:02d}:{:02d}', abs(off_hours), CASE WHEN off_hours > 0 THEN 'ahead of' ELSE 'behind' END,
            CASE WHEN off_hours > 0 THEN '+' ELSE '-' END, floor(abs(off_hours))::BIGINT, (abs(off_hours) * 60)::BIGINT % 60)
        ELSE 'no sample of the sensors lies in the window: the log is of another time, or one of the two clocks does not count from the epoch'
    END
FROM shared
WHERE n > 0 AND end_ns > start_ns
UNION ALL
SELECT
    NULL, 'telemetry_notes', 'warning', count(*)::DOUBLE, 0, '["telemetry"]',
    string_agg(format('{}: {}', name, note), '; ' ORDER BY name, note)
FROM notes
HAVING count(*) > 0
ORDER BY check_id
