-- One row: device time of prefill in steps that can be trusted, by what limits its kernels.
-- prefill_ns     ns of prefill
-- attention_ns   of these, attention
-- compute_ns     of these, kernels on the computing side
-- products_ns    of these, matrix products in 16 bits on the computing side
-- roof_ns        what the products take at their roof
SELECT
    coalesce(sum(k.prefill_ns), 0)::BIGINT AS prefill_ns,
    coalesce(sum(k.prefill_ns) FILTER (WHERE k.category = 'attention'), 0)::BIGINT AS attention_ns,
    coalesce(sum(k.prefill_ns) FILTER (WHERE k.side = 'compute'), 0)::BIGINT AS compute_ns,
    coalesce(sum(k.prefill_ns) FILTER (WHERE k.wide), 0)::BIGINT AS products_ns,
    coalesce(sum(k.prefill_ns * k.roof_fraction) FILTER (WHERE k.wide), 0)::BIGINT AS roof_ns
FROM (
    SELECT
        kernels.*, side = 'compute' AND category IN ('gemm', 'moe') AND NOT coalesce(impossible, false)
            AND roof_fraction IS NOT NULL AND (dtype IS NULL OR regexp_matches(lower(dtype), 'bf16|bfloat16|fp16|float16|half')) AS wide
    FROM kernels
    WHERE run_id = $run_id AND valid AND prefill_ns > 0
) AS k
JOIN steps AS s ON s.run_id = k.run_id AND s.step_id = k.step_id AND s.trusted IS NOT false
