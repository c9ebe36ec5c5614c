-- One row per scheduler iteration with work of a pass, as the engine's ledger has it: every pass, recorded or not.
-- pass
-- start_ns          ns; scheduled
-- step_ns           ns from the end of scheduling, or the result before, to its result
-- kind              'prefill' | 'decode' | 'mixed'
-- prefill_tokens    tokens below the prompt's end or computed before (recompute included)
-- prefill_context_tokens   Σ context of these requests after the step
-- decode_reqs       requests that decode
-- decode_context_tokens    Σ context of these requests after the step
-- accepted_tokens   output tokens that came of the step; NULL: not known
WITH ranged AS (
    SELECT
        pid, seq, new_tokens, computed_before + new_tokens AS context, accepted_tokens,
        greatest(coalesce(prompt_tokens, CASE WHEN output_before > 0 THEN 0 ELSE computed_before + new_tokens END), coalesce(
            max(computed_before + new_tokens - coalesce(spec_tokens, 0)) OVER (
                PARTITION BY pid, engine_request_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0)) AS known, computed_before
    FROM ledger_rows
    WHERE run_id = $run_id AND new_tokens > 0
),
counted AS (
    SELECT
        pid, seq,
        sum(new_tokens) FILTER (WHERE computed_before < known)::BIGINT AS prefill_tokens,
        sum(context) FILTER (WHERE computed_before < known)::BIGINT AS prefill_context_tokens,
        count(*) FILTER (WHERE computed_before >= known) AS decode_reqs,
        sum(context) FILTER (WHERE computed_before >= known)::BIGINT AS decode_context_tokens,
        CASE WHEN count(accepted_tokens) = count(*) THEN sum(accepted_tokens)::BIGINT END AS accepted_tokens
    FROM ranged
    GROUP BY pid, seq
),
timed AS (
    SELECT
        pid, seq, pass, sched_start_ns,
        result_start_ns - greatest(sched_end_ns, coalesce(max(result_start_ns) OVER (
            PARTITION BY pid ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), sched_end_ns)) AS step_ns
    FROM ledger_steps
    WHERE run_id = $run_id
)
SELECT
    t.pass, t.sched_start_ns AS start_ns, t.step_ns,
    CASE WHEN c.decode_reqs = 0 THEN 'prefill' WHEN c.prefill_tokens > 0 THEN 'mixed' ELSE 'decode' END AS kind,
    coalesce(c.prefill_tokens, 0) AS prefill_tokens, coalesce(c.prefill_context_tokens, 0) AS prefill_context_tokens,
    c.decode_reqs, coalesce(c.decode_context_tokens, 0) AS decode_context_tokens, c.accepted_tokens
FROM timed AS t
JOIN counted AS c USING (pid, seq)
WHERE t.step_ns > 0 AND t.pass IS DISTINCT FROM 'warmup'
ORDER BY t.sched_start_ns, t.pid, t.seq
