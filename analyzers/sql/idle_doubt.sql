-- One row: how much of the devices' busy time lies where the request log has nothing in the engine? share: 0..1.
SELECT coalesce(sum(k.busy_ns) FILTER (WHERE k.start_ns < e.end_ns) / nullif(sum(k.busy_ns), 0), 0) AS share
FROM kernels AS k
ASOF LEFT JOIN idle_engine AS e ON e.start_ns <= k.start_ns
WHERE k.run_id = $run_id AND k.valid;
