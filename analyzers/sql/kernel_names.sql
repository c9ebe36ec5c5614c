-- The distinct names of a run's device activities.
-- kind     'kernel' | 'memcpy' | 'memset' | 'cpu_op'
-- name     as recorded
-- op_name  the launching operator, NULL where unknown
select distinct kind, name, op_name
from kernels
where run_id = $run_id and name is not null
order by kind, name, op_name
