-- telemetry: one row per sample of a device's sensors, and sensors: one row per device and source, of the staged logs.
-- Where several logs speak of one device, each column comes from the best source that has it: two counters, or two meters of
-- one device, must not be mixed. A machine's CPUs (rapl, cpu) are device 0 only where no GPU is. The rank is that of the
-- recording that names the device, else 0. Times in ns.
-- Devices of another machine that go by the number of one we have: files of one source that give one device different uuids.
CREATE TABLE stage.namesake AS
SELECT src, device, source, uuid
FROM (
    SELECT *, arg_min(uuid, src) FILTER (WHERE uuid IS NOT NULL) OVER (PARTITION BY device, source) AS first_uuid FROM stage.sensors
)
WHERE uuid <> first_uuid;

CREATE TABLE stage.sample AS
WITH preferred AS (
    SELECT
        *,
        CASE source WHEN 'nvml' THEN 1 WHEN 'dcgm' THEN 2 WHEN 'prometheus' THEN 3 WHEN 'nvidia-smi' THEN 4 WHEN 'rapl' THEN 5 ELSE 6 END
            AS preference
    FROM stage.telemetry
    WHERE (src, device, source) NOT IN (SELECT (src, device, source) FROM stage.namesake)
    QUALIFY row_number() OVER (PARTITION BY device, source, ts_ns ORDER BY src) = 1  -- a log given twice
)
SELECT *
FROM preferred
QUALIFY preference <= 4 OR min(preference) OVER (PARTITION BY device) > 4;

CREATE TABLE stage.chosen AS
SELECT
    device, source, ts_ns,
    CASE
        WHEN preference = min(CASE WHEN COLUMNS(* EXCLUDE (src, device, source, ts_ns, preference)) IS NOT NULL THEN preference END)
            OVER (PARTITION BY device)
            THEN COLUMNS(* EXCLUDE (src, device, source, ts_ns, preference))
    END
FROM stage.sample;

-- Without the samples of which nothing is left: a better log has every column, or nothing was known.
CREATE TABLE stage.kept AS
SELECT *
FROM stage.chosen
WHERE coalesce(
    power_w, power_instant_w, energy_j, sm_util, mem_util, sm_active, dram_active, tensor_active, fp16_active, fp32_active, fp64_active,
    pcie_bytes_s, pcie_tx_bytes_s, pcie_rx_bytes_s, nvlink_bytes_s, nvlink_tx_bytes_s, nvlink_rx_bytes_s, sm_clock_mhz, mem_clock_mhz,
    memory_used_bytes, temperature_c, cpu_util, cpu_busy_s
) IS NOT NULL OR throttle IS NOT NULL OR resident IS NOT NULL;

-- The counter of energy as a total that only grows. One that falls from the upper half of 32 bits of mJ has wrapped; any other
-- was set back, and counts from zero again.
CREATE TABLE stage.energy AS
WITH stepped AS (
    SELECT device, ts_ns, energy_j, lag(energy_j) OVER (PARTITION BY device ORDER BY ts_ns) AS before_j
    FROM stage.kept
    WHERE energy_j IS NOT NULL
)
SELECT
    device, ts_ns,
    energy_j + sum(CASE
        WHEN energy_j >= before_j OR before_j IS NULL THEN 0
        WHEN before_j BETWEEN 2147483.648 AND 4294967.296 THEN 4294967.296
        ELSE before_j
    END) OVER (PARTITION BY device ORDER BY ts_ns ROWS UNBOUNDED PRECEDING) AS energy_j
FROM stepped;

-- Shares of CPU time from counters, where a log has no share of its own.
CREATE TABLE stage.cpu_share AS
WITH passed AS (
    SELECT device, ts_ns, cpu_busy_s - lag(cpu_busy_s) OVER w AS busy_s, cpu_total_s - lag(cpu_total_s) OVER w AS total_s
    FROM stage.kept
    WHERE cpu_busy_s IS NOT NULL AND cpu_total_s IS NOT NULL
    WINDOW w AS (PARTITION BY device ORDER BY ts_ns)
)
SELECT device, ts_ns, least(busy_s / total_s, 1) AS cpu_util
FROM passed
WHERE busy_s >= 0 AND total_s > 0;

CREATE TABLE stage.device_rank AS
SELECT d.device, coalesce(min(k.rank), 0) AS rank
FROM (SELECT device FROM stage.telemetry UNION SELECT device FROM stage.sensors) AS d
LEFT JOIN devices AS k ON k.run_id = getvariable('run_id') AND k.device = d.device
GROUP BY d.device;

INSERT INTO telemetry (
    run_id, rank, device, ts_ns, power_w, power_instant_w, energy_j, sm_util, mem_util, sm_active, dram_active, tensor_active,
    fp16_active, fp32_active, fp64_active, pcie_bytes_s, pcie_tx_bytes_s, pcie_rx_bytes_s, nvlink_bytes_s, nvlink_tx_bytes_s,
    nvlink_rx_bytes_s, sm_clock_mhz, mem_clock_mhz, memory_used_bytes, temperature_c, throttle, resident, cpu_util
)
SELECT
    getvariable('run_id'), r.rank, c.device, c.ts_ns, c.power_w, c.power_instant_w, e.energy_j, c.sm_util, c.mem_util, c.sm_active,
    c.dram_active, c.tensor_active, c.fp16_active, c.fp32_active, c.fp64_active,
    coalesce(c.pcie_bytes_s, c.pcie_tx_bytes_s + c.pcie_rx_bytes_s), c.pcie_tx_bytes_s, c.pcie_rx_bytes_s,
    coalesce(c.nvlink_bytes_s, c.nvlink_tx_bytes_s + c.nvlink_rx_bytes_s), c.nvlink_tx_bytes_s, c.nvlink_rx_bytes_s,
    c.sm_clock_mhz, c.mem_clock_mhz, c.memory_used_bytes, c.temperature_c, c.throttle, c.resident, coalesce(c.cpu_util, p.cpu_util)
FROM stage.kept AS c
JOIN stage.device_rank AS r USING (device)
LEFT JOIN stage.energy AS e ON c.energy_j IS NOT NULL AND e.device = c.device AND e.ts_ns = c.ts_ns
LEFT JOIN stage.cpu_share AS p ON c.cpu_busy_s IS NOT NULL AND p.device = c.device AND p.ts_ns = c.ts_ns
ORDER BY r.rank, c.device, c.ts_ns;

INSERT INTO sensors (run_id, rank, device, source, name, uuid, samples, period_ns, power_period_ns, power_limit_w, fields)
WITH spaced AS (
    SELECT
        device, source, ts_ns - lag(ts_ns) OVER w AS gap_ns, ts_ns,
        coalesce(power_instant_w, power_w) IS DISTINCT FROM lag(coalesce(power_instant_w, power_w)) OVER w
            AND lag(coalesce(power_instant_w, power_w)) OVER w IS NOT NULL AS changed
    FROM stage.sample
    WINDOW w AS (PARTITION BY device, source ORDER BY ts_ns)
),
changes AS (
    SELECT device, source, ts_ns - lag(ts_ns) OVER (PARTITION BY device, source ORDER BY ts_ns) AS between_ns
    FROM spaced
    WHERE changed
),
counted AS (
    SELECT device, source, median(gap_ns)::BIGINT AS period_ns, coalesce(any_value(n), 0) AS samples
    FROM spaced
    LEFT JOIN (SELECT device, source, count(*) AS n FROM stage.kept GROUP BY device, source) USING (device, source)
    GROUP BY device, source
),
seen AS (
    SELECT device, source, median(between_ns)::BIGINT AS power_period_ns FROM changes GROUP BY device, source HAVING count(between_ns) >= 2
),
present AS (
    SELECT device, source, count(COLUMNS(* EXCLUDE (device, source, ts_ns)))::BIGINT FROM stage.kept GROUP BY device, source
),
offered AS (
    SELECT device, source, to_json(list(name ORDER BY name)) AS fields
    FROM (
        SELECT device, source, CASE WHEN name IN ('cpu_busy_s', 'cpu_total_s') THEN 'cpu_util' ELSE name END AS name
        FROM (UNPIVOT present ON COLUMNS(* EXCLUDE (device, source)) INTO NAME name VALUE n)
        WHERE n > 0
        GROUP BY ALL
    )
    GROUP BY device, source
),
told AS (
    SELECT
        device, source, max(name) AS name, max(uuid) AS uuid, max(power_period_ns) AS power_period_ns, max(power_limit_w) AS power_limit_w
    FROM stage.sensors
    WHERE (src, device, source) NOT IN (SELECT (src, device, source) FROM stage.namesake)
    GROUP BY device, source
)
SELECT
    getvariable('run_id'), r.rank, device, source, t.name, t.uuid, coalesce(c.samples, 0), c.period_ns,
    -- as measured before sampling began, else as far as the samples can tell
    coalesce(t.power_period_ns, s.power_period_ns), t.power_limit_w, coalesce(o.fields, '[]')
FROM counted AS c
FULL JOIN told AS t USING (device, source)
LEFT JOIN seen AS s USING (device, source)
LEFT JOIN offered AS o USING (device, source)
JOIN stage.device_rank AS r USING (device)
ORDER BY r.rank, device, source;
