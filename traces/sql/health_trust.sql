-- Steps whose numbers the recording cannot carry: no activity at all, or none for one of its graph launches.
UPDATE steps SET trusted = false
WHERE run_id = $run_id
    AND rank IN (SELECT rank FROM kernels WHERE run_id = $run_id AND valid)
    AND (
        coalesce(n_kernels, 0) = 0
        OR step_id IN (SELECT step_id FROM launches WHERE run_id = $run_id AND is_graph AND n_kernels = 0 AND step_id IS NOT NULL)
    );
