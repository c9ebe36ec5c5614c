-- energy_j (J) of steps, step_requests and requests from the temporary tables energy_step and energy_request.
-- A step has one where the sensor is no slower than it; its requests share it by device time; a request has one where it is
-- known for all its recorded steps and the sensor is no slower than the request.
UPDATE steps SET energy_j = NULL WHERE run_id = getvariable('run_id') AND energy_j IS NOT NULL;

UPDATE steps AS s
SET energy_j = e.energy_j
FROM energy_step AS e
WHERE s.run_id = getvariable('run_id') AND s.step_id = e.step_id AND e.resolved;

UPDATE step_requests SET energy_j = NULL WHERE run_id = getvariable('run_id') AND energy_j IS NOT NULL;

UPDATE step_requests AS r
SET energy_j = e.energy_j * r.device_ns / e.busy_ns
FROM energy_step AS e
WHERE r.run_id = getvariable('run_id') AND r.step_id = e.step_id AND e.resolved AND e.busy_ns > 0;

UPDATE requests SET energy_j = NULL WHERE run_id = getvariable('run_id') AND energy_j IS NOT NULL;

UPDATE requests AS q
SET energy_j = e.energy_j
FROM energy_request AS e
WHERE q.run_id = getvariable('run_id') AND q.request_id = e.request_id AND e.why IS NULL;
