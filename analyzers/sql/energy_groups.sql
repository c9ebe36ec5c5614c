-- One row: how the engine of a run divides its model.
-- device_name   as the recording names the first device
-- group_size    devices that hold one copy of the model: tensor parallel ranks times pipeline stages; 1 where not said
SELECT
    (SELECT name FROM devices WHERE run_id = $run_id AND name IS NOT NULL ORDER BY rank, device LIMIT 1) AS device_name,
    least(greatest(coalesce(try_cast(json_extract_string(config, '$.engine_facts.tensor_parallel_size') AS BIGINT), 1), 1), 65536)
    * least(greatest(coalesce(try_cast(json_extract_string(config, '$.engine_facts.pipeline_parallel_size') AS BIGINT), 1), 1), 65536)
        AS group_size
FROM runs
WHERE run_id = $run_id
