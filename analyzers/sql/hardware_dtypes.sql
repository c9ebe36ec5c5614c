-- Which element types the matrix products of a run compute in, by device time.
-- op_dtypes  input types of the launching operator as a JSON list, NULL where unknown
-- name       the kernel, NULL where op_dtypes tell
-- busy_ns    Σ of their parts of the device's busy time, ns
SELECT
    CAST(op_dtypes AS VARCHAR) AS op_dtypes,
    CASE WHEN op_dtypes IS NULL THEN name END AS name,
    CAST(sum(busy_ns) AS BIGINT) AS busy_ns
FROM kernels
WHERE run_id = $run_id AND valid AND category = 'gemm' AND busy_ns > 0
GROUP BY ALL
ORDER BY busy_ns DESC, op_dtypes, name
