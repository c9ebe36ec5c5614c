-- One row per step of the ledger: how full the engine was.
-- pid, seq          the step
-- total_tokens      tokens scheduled
-- running, waiting  requests
-- kv_usage          share of the KV blocks in use, 0..1
SELECT pid, seq, total_tokens, running, waiting, kv_usage
FROM ledger_steps
WHERE run_id = $run_id
ORDER BY pid, seq
