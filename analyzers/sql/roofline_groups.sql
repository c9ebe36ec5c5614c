-- Distinct kinds of device activities of a run, as temp table cost_group: what a cost is worked out for once.
-- Where a capture trace was aligned, graph_operators says which operator a graph's kernel came of.
-- gid          number of the group
-- okid         number of (op_name, op_shapes, op_dtypes); NULL where no operator is known
-- kind, name, category, op_name, op_shapes, op_dtypes   as in kernels
-- captured     the operator is known from a capture trace
CREATE OR REPLACE TEMP TABLE cost_group AS
WITH seen AS (
    SELECT
        k.kind, k.name, k.category,
        CASE WHEN k.kind = 'cpu_op' THEN k.name ELSE coalesce(k.op_name, g.op_name) END AS op_name,
        CAST(coalesce(k.op_shapes, g.op_shapes) AS VARCHAR) AS op_shapes,
        CAST(coalesce(k.op_dtypes, g.op_dtypes) AS VARCHAR) AS op_dtypes,
        k.op_name IS NULL AND g.op_name IS NOT NULL AS captured
    FROM kernels AS k
    LEFT JOIN graph_operators AS g ON g.kernel_id = k.kernel_id
    WHERE k.run_id = $run_id AND k.valid
    GROUP BY ALL
)
SELECT
    row_number() OVER (ORDER BY kind, name, op_name, op_shapes, op_dtypes, category, captured) AS gid,
    CASE WHEN op_name IS NOT NULL THEN dense_rank() OVER (ORDER BY op_name, op_shapes, op_dtypes) END AS okid,
    *
FROM seen
