-- Distinct kinds of device activities of a run, as temp table cost_group: what a cost is worked out for once.
-- gid          number of the group
-- okid         number of (op_name, op_shapes, op_dtypes); NULL where no operator is known
-- kind, name, category, op_name, op_shapes, op_dtypes   as in kernels
-- captured     launched by a graph: then its operator is what a capture trace recorded
CREATE OR REPLACE TEMP TABLE cost_group AS
WITH seen AS (
    SELECT
        kind, name, category, CASE WHEN kind = 'cpu_op' THEN name ELSE op_name END AS op_name,
        CAST(op_shapes AS VARCHAR) AS op_shapes, CAST(op_dtypes AS VARCHAR) AS op_dtypes,
        coalesce(in_graph, false) AS captured
    FROM kernels
    WHERE run_id = $run_id AND valid
    GROUP BY ALL
)
SELECT
    row_number() OVER (ORDER BY kind, name, op_name, op_shapes, op_dtypes, category, captured) AS gid,
    CASE WHEN op_name IS NOT NULL THEN dense_rank() OVER (ORDER BY op_name, op_shapes, op_dtypes) END AS okid,
    *
FROM seen
