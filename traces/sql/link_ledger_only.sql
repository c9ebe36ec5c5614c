-- stage.step of a run without a trace: one row per ledger step of the profiled pass. Times in ns.
INSERT INTO stage.step
SELECT
    row_number() OVER (ORDER BY sched_start_ns, pid, seq), row_number() OVER (ORDER BY sched_start_ns, pid, seq) - 1,
    0, pid, NULL, NULL, NULL, sched_start_ns, NULL, result_end_ns, 'ledger', pid, seq
FROM stage.ledger_steps
WHERE total_tokens > 0
    AND sched_start_ns >= coalesce(getvariable('window_start'), sched_start_ns)
    AND sched_start_ns < coalesce(getvariable('window_end'), sched_start_ns + 1);
