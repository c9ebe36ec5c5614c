-- Sums the costs of kernels to steps: flops, bytes, coverage, side, roof fraction, and the division of busy_ns by bound.
-- Intensity, side and roof fraction are NULL where most of the busy time has no cost: they would not speak of the step.
-- A row that overlaps an earlier one has part of its time in busy_ns, so its cost counts whole and its time by that part.
-- compute + memory + latency + inefficient + comm + unknown = busy. Bound is 'host' where idle time within the step's device span
-- is the largest part and most of it has causes of the host (gaps.cause). Changes steps; no result.
WITH part AS (
    SELECT
        k.step_id,
        sum(k.flops) AS flops, sum(k.bytes) AS bytes,
        sum(k.busy_ns) FILTER (WHERE k.flops IS NOT NULL AND NOT coalesce(k.impossible, false))::BIGINT AS known_ns,
        sum(k.roof_fraction * k.dur_ns) FILTER (WHERE NOT k.impossible) AS roof_ns,
        sum(k.dur_ns) FILTER (WHERE k.roof_fraction IS NOT NULL AND NOT k.impossible) AS roofed_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE k.bound = 'compute'), 0)::BIGINT AS compute_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE k.bound = 'memory'), 0)::BIGINT AS memory_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE k.bound = 'latency'), 0)::BIGINT AS latency_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE k.bound = 'inefficient'), 0)::BIGINT AS inefficient_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE k.bound = 'comm'), 0)::BIGINT AS comm_ns,
        any_value(d.ridge) AS ridge
    FROM kernels AS k
    LEFT JOIN devices AS d ON d.run_id = k.run_id AND d.rank = k.rank AND d.device = k.device
    WHERE k.run_id = $run_id AND k.valid AND k.step_id IS NOT NULL
    GROUP BY k.step_id
),
host_total AS (  -- running totals of idle time whose cause is the host's; as in step_idle.sql a piece is in a span or out of it
    SELECT
        rank, device, start_ns + dur_ns AS end_ns,
        sum(CASE WHEN cause IN ('frontend', 'scheduler', 'host_prepare', 'host_launch', 'sampling_output', 'sync', 'memcpy', 'host_other')
            THEN dur_ns ELSE 0 END) OVER (PARTITION BY rank, device ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS host_ns
    FROM gaps
    WHERE run_id = $run_id
),
host AS (
    SELECT d.step_id, sum(coalesce(b.host_ns, 0) - coalesce(a.host_ns, 0))::BIGINT AS host_ns
    FROM (
        SELECT step_id, rank, device, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
        FROM kernels
        WHERE run_id = $run_id AND valid AND step_id IS NOT NULL
        GROUP BY ALL
    ) AS d
    ASOF LEFT JOIN host_total AS a ON a.rank = d.rank AND a.device = d.device AND a.end_ns <= d.first_ns
    ASOF LEFT JOIN host_total AS b ON b.rank = d.rank AND b.device = d.device AND b.end_ns <= d.last_ns
    GROUP BY ALL
)
UPDATE steps AS s
SET flops = p.flops, bytes = p.bytes, cost_coverage = coalesce(p.known_ns, 0) / nullif(s.busy_ns, 0),
    intensity = CASE WHEN 2 * p.known_ns >= s.busy_ns THEN p.flops / nullif(p.bytes, 0) END, ridge = p.ridge,
    side = CASE WHEN 2 * p.known_ns < s.busy_ns THEN NULL
        WHEN p.flops / nullif(p.bytes, 0) >= p.ridge THEN 'compute' WHEN p.flops / nullif(p.bytes, 0) < p.ridge THEN 'memory' END,
    roof_fraction = CASE WHEN 2 * p.known_ns >= s.busy_ns THEN p.roof_ns / nullif(p.roofed_ns, 0) END,
    compute_ns = p.compute_ns, memory_ns = p.memory_ns, latency_ns = p.latency_ns, inefficient_ns = p.inefficient_ns, comm_ns = p.comm_ns,
    unknown_ns = s.busy_ns - p.compute_ns - p.memory_ns - p.latency_ns - p.inefficient_ns - p.comm_ns,
    bound = CASE
        WHEN coalesce(s.idle_ns, 0) > 0 AND s.idle_ns >= greatest(p.compute_ns, p.memory_ns, p.latency_ns, p.inefficient_ns, p.comm_ns,
            s.busy_ns - p.compute_ns - p.memory_ns - p.latency_ns - p.inefficient_ns - p.comm_ns)
            THEN CASE WHEN h.host_ns * 2 > s.idle_ns THEN 'host' ELSE 'idle' END
        WHEN 2 * (s.busy_ns - p.compute_ns - p.memory_ns - p.latency_ns - p.inefficient_ns - p.comm_ns) > s.busy_ns THEN NULL
        ELSE list_extract(list_sort([
            (p.compute_ns, 'compute'), (p.memory_ns, 'memory'), (p.latency_ns, 'latency'), (p.inefficient_ns, 'inefficient'), (p.comm_ns, 'comm')
        ]), -1)[2]
    END
FROM part AS p
LEFT JOIN host AS h USING (step_id)
WHERE s.run_id = $run_id AND s.step_id = p.step_id
