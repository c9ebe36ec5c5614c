-- energy_request: one row per request with recorded steps.
-- request_id       key
-- energy_j         Σ its share by device time of its steps' energy, J, over what is known
-- why              NULL: it is the request's; 'not covered': steps outside the sensor's time; 'not divided': steps whose time
--                  could not be divided over requests; 'sensor slower': all its steps together are shorter than the sensor's period
CREATE OR REPLACE TEMP TABLE energy_request AS
SELECT
    r.request_id, coalesce(sum(e.energy_j * r.device_ns / e.busy_ns) FILTER (WHERE e.covered), 0) AS energy_j,
    CASE
        WHEN count(*) FILTER (WHERE e.covered IS NOT TRUE) > 0 THEN 'not covered'
        WHEN count(*) FILTER (WHERE r.device_ns IS NULL) > 0 THEN 'not divided'
        WHEN max(s.device_end_ns) - min(s.device_start_ns) < max(e.period_ns) THEN 'sensor slower'
    END AS why
FROM step_requests AS r
JOIN steps AS s ON s.run_id = r.run_id AND s.step_id = r.step_id AND s.busy_ns > 0
LEFT JOIN energy_step AS e ON e.step_id = r.step_id
WHERE r.run_id = getvariable('run_id')
GROUP BY r.request_id;
