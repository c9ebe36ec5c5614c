-- GEMMs with a dimension as wide as the (padded, divided) vocabulary, $low..$high, compute logits.
-- Changes kernels.category from 'gemm' to 'logits'; the result is the number of rows changed.
-- Operator shapes are JSON: a list with one list of extents per argument.
update kernels
set category = 'logits'
where run_id = $run_id
  and category = 'gemm'
  and op_shapes is not null
  and exists (
    select 1
    from unnest(regexp_extract_all(op_shapes::varchar, '[0-9]+')) as extents(extent)
    where try_cast(extent as bigint) between $low and $high
  )
