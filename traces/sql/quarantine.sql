-- Placeholder order: activities that no sum may use are marked in stage.activity before windows are computed.
UPDATE stage.activity SET valid = false, invalid_reason = 'no time recorded' WHERE valid AND start_ns = 0 AND dur_ns = 0;
