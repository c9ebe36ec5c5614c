-- One row per step kind and graph mode of a run.
-- kind, graph_mode   graph_mode 'not recorded' where it is NULL
-- steps              count
SELECT kind, coalesce(graph_mode, 'not recorded') AS graph_mode, count(*) AS steps
FROM steps
WHERE run_id = $run_id
GROUP BY 1, 2
ORDER BY 1, 2
