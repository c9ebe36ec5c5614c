-- One row per step of the ledger that served requests of one pass and has its result, in order: what it took, what it did.
-- pid, seq        the step
-- step_ns         ns from its scheduling to its result that no step before covers, so that they sum to the engine's step time
-- requests        served in it
-- prefill_tokens  tokens of prompts, and tokens computed again after a preemption
-- prefill_pairs   (token, token it looks back on) of these, itself included
-- decode_tokens   tokens of requests that go on with their output, drafted ones included
-- decode_context  tokens these look back on
WITH step AS (
    SELECT
        pid, seq,
        result_start_ns - greatest(sched_end_ns, coalesce(max(result_start_ns) OVER (
            PARTITION BY pid ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), sched_end_ns)) AS step_ns
    FROM ledger_steps
    WHERE run_id = $run_id AND result_start_ns >= sched_end_ns
),
asked AS (
    SELECT
        r.pid, r.seq, r.new_tokens::DOUBLE AS n, (r.computed_before + r.new_tokens)::DOUBLE AS until,
        r.output_before > 0 AND r.new_tokens - coalesce(r.spec_tokens, 0) <= 1 AS decodes,
        q.request_id IS NOT NULL AS of_pass
    FROM ledger_rows AS r
    LEFT JOIN requests AS q ON q.run_id = $run_id AND q.request_id = r.engine_request_id AND q.pass IS NOT DISTINCT FROM $pass
    WHERE r.run_id = $run_id AND r.new_tokens > 0
)
SELECT
    s.pid, s.seq, greatest(s.step_ns, 0) AS step_ns, count(*) AS requests,
    coalesce(sum(a.n) FILTER (WHERE NOT a.decodes), 0) AS prefill_tokens,
    coalesce(sum(a.n * (2 * a.until - a.n + 1) / 2) FILTER (WHERE NOT a.decodes), 0) AS prefill_pairs,
    coalesce(sum(a.n) FILTER (WHERE a.decodes), 0) AS decode_tokens,
    coalesce(sum(a.n * a.until) FILTER (WHERE a.decodes), 0) AS decode_context
FROM step AS s
JOIN asked AS a USING (pid, seq)
GROUP BY s.pid, s.seq, s.step_ns
HAVING bool_or(a.of_pass)
ORDER BY s.pid, s.seq
