-- Writes the category of each device activity of a run from kernel_category_map (kind, name, op_name, category).
-- Changes kernels.category; no result.
update kernels
set category = m.category
from kernel_category_map m
where kernels.run_id = $run_id
  and kernels.kind = m.kind
  and kernels.name = m.name
  and kernels.op_name is not distinct from m.op_name
