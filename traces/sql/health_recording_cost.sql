-- Check, one row for a run whose recording names what was kept beside the launches (stacks, shapes, memory, modules), which slows
-- the host. value: share of the devices' windows in which they were idle, 0..1; on a CPU engine 1, since the host is the device.
WITH kept AS (
    SELECT list_filter([
        CASE WHEN config ->> '$.with_stack' IN ('1', 'true') THEN 'stacks' END,
        CASE WHEN config ->> '$.record_shapes' IN ('1', 'true') THEN 'operator shapes' END,
        CASE WHEN config ->> '$.profile_memory' IN ('1', 'true') THEN 'memory' END,
        CASE WHEN config ->> '$.with_modules' IN ('1', 'true') THEN 'modules' END
    ], lambda name: name IS NOT NULL) AS names
    FROM runs
    WHERE run_id = $run_id
),
idle AS (
    SELECT
        coalesce(sum(idle_ns) / nullif(sum(window_end_ns - window_start_ns), 0), 0) AS share,
        (SELECT count(*) FROM kernels WHERE run_id = $run_id AND kind = 'cpu_op') > 0 AS on_cpu,
        (SELECT count(*) FROM ledger_steps WHERE run_id = $run_id AND pass = 'control') > 0 AS controlled
    FROM devices
    WHERE run_id = $run_id
)
SELECT
    NULL::INTEGER AS rank, 'recording_cost' AS check_id,
    CASE WHEN NOT controlled AND (on_cpu OR share > 0.05) THEN 'warning' ELSE 'ok' END AS status,
    CASE WHEN on_cpu THEN 1 ELSE share END::DOUBLE AS value, 0.05::DOUBLE AS threshold,
    '["devices.idle_ns", "steps.idle_ns", "gaps.dur_ns"]' AS affects,
    CASE
        WHEN controlled THEN format('{} were recorded; the control pass tells what that cost (`stepscope summary`)', array_to_string(names, ', '))
        WHEN on_cpu THEN format('{} were recorded, which slows the engine, and no control pass tells by how much: times are those of a slowed '
            || 'engine. `stepscope profile` runs a control pass', array_to_string(names, ', '))
        WHEN share > 0.05 THEN format('{} were recorded, which slows the host, and no control pass tells by how much: of the {:.1f} % of the window '
            || 'in which the device is idle, a part is the profiler''s. Record without them, or with `stepscope profile`, which runs a control pass',
            array_to_string(names, ', '), 100 * share)
        ELSE format('{} were recorded, which slows the host, but the device is idle for {:.1f} % of the window only', array_to_string(names, ', '), 100 * share)
    END AS message
FROM kept, idle
WHERE len(names) > 0;
