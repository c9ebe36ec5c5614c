-- One row per step kind of a run.
-- kind         'prefill' | 'decode' | 'mixed' | 'other'
-- steps        count
-- prefill_tokens, decode_tokens   tokens computed in these steps
-- recompute_tokens                tokens computed again after a preemption (part of prefill_tokens)
-- busy_ns      device time, ns
-- prefill_ns, decode_ns, other_ns   its parts, ns; NULL where a step of the kind could not be split
-- p50_ns, p90_ns, p99_ns   percentiles of the step's duration: schedule to result in the engine, else its device span, unless a part
--              of that was not recorded, ns
SELECT
    s.kind,
    count(*) AS steps,
    sum(s.prefill_tokens)::BIGINT AS prefill_tokens,
    sum(s.decode_tokens)::BIGINT AS decode_tokens,
    sum(s.recompute_tokens)::BIGINT AS recompute_tokens,
    sum(s.busy_ns)::BIGINT AS busy_ns,
    CASE WHEN count(s.prefill_ns) = count(s.busy_ns) THEN sum(s.prefill_ns)::BIGINT END AS prefill_ns,
    CASE WHEN count(s.decode_ns) = count(s.busy_ns) THEN sum(s.decode_ns)::BIGINT END AS decode_ns,
    CASE WHEN count(s.other_ns) = count(s.busy_ns) THEN sum(s.other_ns)::BIGINT END AS other_ns,
    quantile_cont(s.dur_ns, 0.5) AS p50_ns,
    quantile_cont(s.dur_ns, 0.9) AS p90_ns,
    quantile_cont(s.dur_ns, 0.99) AS p99_ns
FROM (
    SELECT
        steps.*,
        coalesce(
            l.result_end_ns - l.sched_start_ns,
            CASE WHEN coalesce(steps.unrecorded_ns, 0) = 0 THEN steps.device_end_ns - steps.device_start_ns END
        ) AS dur_ns
    FROM steps
    LEFT JOIN (
        SELECT seq, min(sched_start_ns) AS sched_start_ns, min(result_end_ns) AS result_end_ns
        FROM ledger_steps
        WHERE run_id = $run_id
        GROUP BY seq
        HAVING count(*) = 1
    ) AS l ON l.seq = steps.ledger_seq
    WHERE steps.run_id = $run_id
) AS s
GROUP BY s.kind
ORDER BY busy_ns DESC NULLS LAST, s.kind
