-- kernels.prefill_ns and decode_ns (ns): kernels of a pure step and kernels that serve one phase are whole; in a mixed step
-- a category's prefill time (step_part) is divided by busy time, rounded along the running sum so that nothing is lost.
CREATE OR REPLACE TEMP TABLE kernel_part AS
WITH mixed AS (
    SELECT
        k.kernel_id, k.busy_ns, p.phase, t.prefill_ns AS part_ns,
        sum(k.busy_ns) OVER (PARTITION BY k.step_id, k.category, p.phase ORDER BY k.kernel_id)::BIGINT AS upto_ns,
        sum(k.busy_ns) OVER (PARTITION BY k.step_id, k.category, p.phase)::BIGINT AS all_ns
    FROM kernels AS k
    JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id AND s.kind = 'mixed'
    LEFT JOIN phase_of_kernel AS p ON p.kind = k.kind AND p.name = k.name AND p.op_name IS NOT DISTINCT FROM k.op_name
    LEFT JOIN step_part AS t ON t.step_id = k.step_id AND t.category IS NOT DISTINCT FROM k.category
    WHERE k.run_id = getvariable('run_id') AND k.valid AND k.busy_ns > 0
)
SELECT
    kernel_id,
    CASE
        WHEN phase = 'prefill' THEN busy_ns
        WHEN phase = 'decode' THEN 0
        WHEN part_ns IS NOT NULL
            THEN round(part_ns::HUGEINT * upto_ns / all_ns)::BIGINT - round(part_ns::HUGEINT * (upto_ns - busy_ns) / all_ns)::BIGINT
    END AS prefill_ns
FROM mixed;

UPDATE kernels AS k
SET prefill_ns = CASE WHEN NOT k.valid THEN NULL WHEN s.kind = 'prefill' THEN k.busy_ns WHEN s.kind IN ('decode', 'other') THEN 0
        ELSE CASE WHEN k.busy_ns = 0 THEN 0 ELSE (SELECT p.prefill_ns FROM kernel_part AS p WHERE p.kernel_id = k.kernel_id) END END,
    decode_ns = CASE WHEN NOT k.valid THEN NULL WHEN s.kind = 'decode' THEN k.busy_ns WHEN s.kind IN ('prefill', 'other') THEN 0
        ELSE CASE WHEN k.busy_ns = 0 THEN 0
            ELSE k.busy_ns - (SELECT p.prefill_ns FROM kernel_part AS p WHERE p.kernel_id = k.kernel_id) END END
FROM steps AS s
WHERE k.run_id = getvariable('run_id') AND s.run_id = k.run_id AND s.step_id = k.step_id;

-- Mixed steps: sums of their kernels; the interval is the shared kernels' own plus what belongs to prefill whole.
UPDATE steps AS s
SET prefill_ns = c.prefill_ns,
    decode_ns = s.busy_ns - c.prefill_ns,
    other_ns = 0,
    split_low_ns = greatest(least(coalesce(b.split_low_ns, 0) + c.whole_prefill_ns, c.prefill_ns), 0),
    split_high_ns = least(greatest(coalesce(b.split_high_ns, 0) + c.whole_prefill_ns, c.prefill_ns), s.busy_ns),
    split_method = coalesce(b.split_method, 'whole'),
    interference_ns = b.interference_ns + c.whole_prefill_ns
FROM (
    SELECT
        k.step_id, sum(k.prefill_ns)::BIGINT AS prefill_ns,
        coalesce(sum(k.busy_ns) FILTER (WHERE p.phase = 'prefill'), 0)::BIGINT AS whole_prefill_ns
    FROM kernels AS k
    LEFT JOIN phase_of_kernel AS p ON p.kind = k.kind AND p.name = k.name AND p.op_name IS NOT DISTINCT FROM k.op_name
    WHERE k.run_id = getvariable('run_id') AND k.valid
    GROUP BY k.step_id
    HAVING count(*) FILTER (WHERE k.prefill_ns IS NULL) = 0
) AS c
LEFT JOIN step_bounds AS b USING (step_id)
WHERE s.run_id = getvariable('run_id') AND s.kind = 'mixed' AND s.step_id = c.step_id;
