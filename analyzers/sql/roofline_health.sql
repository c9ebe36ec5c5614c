-- Adds one row to table health. No result.
INSERT INTO health (run_id, rank, check_id, status, value, threshold, affects, message)
VALUES ($run_id, NULL, $check_id, $status, $value, $threshold, $affects, $message)
