-- requests.prefill_device_ns and decode_device_ns: Σ step_requests.device_ns over the steps that were recorded, ns, all ranks.
-- Recompute is on prefill's side, verification on decode's (method §4). NULL: no recorded step, or one that could not be divided.
UPDATE requests
SET prefill_device_ns = s.prefill_ns, decode_device_ns = s.decode_ns
FROM (
    SELECT
        q.request_id,
        CASE WHEN count(d.phase) FILTER (WHERE d.prefill AND d.device_ns IS NULL) = 0 THEN sum(d.device_ns) FILTER (WHERE d.prefill) END::BIGINT AS prefill_ns,
        CASE WHEN count(d.phase) FILTER (WHERE NOT d.prefill AND d.device_ns IS NULL) = 0
            THEN sum(d.device_ns) FILTER (WHERE NOT d.prefill) END::BIGINT AS decode_ns
    FROM requests AS q
    LEFT JOIN (
        SELECT request_id, phase, phase IN ('prefill', 'recompute') AS prefill, device_ns FROM step_requests WHERE run_id = getvariable('run_id')
    ) AS d USING (request_id)
    WHERE q.run_id = getvariable('run_id')
    GROUP BY q.request_id
) AS s
WHERE requests.run_id = getvariable('run_id') AND requests.request_id = s.request_id;
