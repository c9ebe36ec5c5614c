-- Writes the costs and bounds of roofline_cost (kernel_id and the columns set here) into kernels; their ids lie from
-- $first_id to $last_id. -- Changes kernels; no result.
UPDATE kernels AS k
SET category = c.category, flops = c.flops, bytes = c.bytes, cost_source = c.cost_source, dtype = c.dtype, intensity = c.intensity,
    side = c.side, bound = c.bound, roof_fraction = c.roof_fraction, impossible = c.impossible
FROM roofline_cost AS c
WHERE k.run_id = $run_id AND k.kernel_id BETWEEN $first_id AND $last_id AND k.kernel_id = c.kernel_id
