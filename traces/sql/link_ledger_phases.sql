-- step_requests and the counts of ledger steps: the phase of every scheduled token (method §3). Tokens.
-- A request's positions [computed_before, computed_before + new_tokens) fall into three ranges: below the high-water mark of
-- what was computed before (recompute after a preemption), the rest of the prompt (prefill), and the rest (decode, or verify
-- where drafted tokens are among them). Drafted tokens that were rejected do not raise the mark.
INSERT INTO ledger_steps
SELECT
    getvariable('run_id'), l.pid, l.seq, p.pass, l.sched_start_ns, l.sched_end_ns, l.result_start_ns, l.result_end_ns,
    l.mono_start_ns, l.total_tokens, l.running, l.waiting, l.kv_usage
FROM stage.ledger_steps AS l
ASOF LEFT JOIN stage.passes AS p ON p.start_ns <= l.sched_start_ns
ORDER BY l.sched_start_ns;

INSERT INTO ledger_rows
SELECT
    getvariable('run_id'), pid, seq, engine_request_id, new_tokens, computed_before, prompt_tokens, output_before, spec_tokens,
    accepted_tokens, is_new, is_resumed
FROM stage.ledger_rows
ORDER BY pid, seq;

INSERT INTO ledger_marks
SELECT getvariable('run_id'), pid, kind, ts_ns, value, text FROM stage.ledger_marks ORDER BY ts_ns;

CREATE TABLE stage.row_phase AS
WITH reached AS (
    SELECT
        *,
        computed_before + new_tokens AS end_before_result,
        computed_before + new_tokens
            - CASE WHEN spec_tokens > 0 THEN spec_tokens - greatest(coalesce(accepted_tokens, 1) - 1, 0) ELSE 0 END AS computed_after
    FROM stage.ledger_rows
),
marked AS (
    SELECT
        *,
        coalesce(max(computed_after) OVER (
            PARTITION BY pid, engine_request_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS high_water
    FROM reached
),
ranged AS (
    SELECT
        *,
        greatest(least(end_before_result, high_water) - computed_before, 0) AS n_recompute,
        -- where the prompt's length was not recorded, having output is what tells decode from prefill
        greatest(least(end_before_result, coalesce(prompt_tokens, CASE WHEN output_before > 0 THEN 0 ELSE end_before_result END))
            - greatest(computed_before, high_water), 0) AS n_prefill
    FROM marked
)
SELECT r.*, x.phase, x.n, x.context
FROM (SELECT *, new_tokens - n_recompute - n_prefill AS n_decode FROM ranged) AS r,
    LATERAL (
        VALUES
            ('recompute', r.n_recompute, r.computed_before + r.n_recompute),
            ('prefill', r.n_prefill, r.computed_before + r.n_recompute + r.n_prefill),
            (CASE WHEN r.spec_tokens > 0 THEN 'verify' ELSE 'decode' END, r.n_decode, r.end_before_result)
    ) AS x (phase, n, context)
WHERE x.n > 0;

INSERT INTO step_requests (run_id, rank, step_id, request_id, phase, new_tokens, context_tokens, cached_tokens, accepted_tokens)
SELECT
    getvariable('run_id'), s.rank, s.step_id, p.engine_request_id, p.phase, p.n, p.context,
    CASE WHEN p.is_new AND p.phase = 'prefill' THEN p.computed_before END,
    -- what came of the row came of its last phase
    CASE WHEN p.context = p.end_before_result THEN p.accepted_tokens ELSE 0 END
FROM stage.step AS s
JOIN stage.row_phase AS p ON p.pid = s.ledger_pid AND p.seq = s.ledger_seq
ORDER BY s.step_id, p.engine_request_id, p.context;

-- A request has one q and one k per side of a step: a chunk of recompute and prefill reads its context once.
CREATE TABLE stage.step_side AS
SELECT
    step_id, request_id, phase IN ('prefill', 'recompute') AS prefill, sum(new_tokens)::BIGINT AS q, max(context_tokens) AS k,
    sum(new_tokens) FILTER (WHERE phase = 'recompute')::BIGINT AS n_recompute,
    sum(new_tokens - 1) FILTER (WHERE phase = 'verify')::BIGINT AS n_spec,
    CASE WHEN count(accepted_tokens) = count(*) THEN sum(accepted_tokens)::BIGINT END AS n_accepted  -- no result: unknown
FROM step_requests
WHERE run_id = getvariable('run_id')
GROUP BY ALL;

UPDATE steps AS s
SET kind = CASE
        WHEN c.prefill_reqs > 0 AND c.decode_reqs > 0 THEN 'mixed'
        WHEN c.prefill_reqs > 0 THEN 'prefill'
        WHEN c.decode_reqs > 0 THEN 'decode'
        ELSE 'other'
    END,
    prefill_reqs = c.prefill_reqs, prefill_tokens = c.prefill_tokens, prefill_kv_tokens = c.prefill_kv, prefill_qq = c.prefill_qq,
    prefill_qk = c.prefill_qk, decode_reqs = c.decode_reqs, decode_tokens = c.decode_tokens, decode_kv_tokens = c.decode_kv,
    decode_qk = c.decode_qk, recompute_tokens = c.recompute_tokens, spec_tokens = c.spec_tokens, accepted_tokens = c.accepted_tokens
FROM (
    SELECT
        step_id,
        count(*) FILTER (WHERE prefill) AS prefill_reqs,
        coalesce(sum(q) FILTER (WHERE prefill), 0)::BIGINT AS prefill_tokens,
        coalesce(sum(k) FILTER (WHERE prefill), 0)::BIGINT AS prefill_kv,
        coalesce(sum(q * q) FILTER (WHERE prefill), 0)::BIGINT AS prefill_qq,
        coalesce(sum(q * k) FILTER (WHERE prefill), 0)::BIGINT AS prefill_qk,
        count(*) FILTER (WHERE NOT prefill) AS decode_reqs,
        coalesce(sum(q) FILTER (WHERE NOT prefill), 0)::BIGINT AS decode_tokens,
        coalesce(sum(k) FILTER (WHERE NOT prefill), 0)::BIGINT AS decode_kv,
        coalesce(sum(q * k) FILTER (WHERE NOT prefill), 0)::BIGINT AS decode_qk,
        coalesce(sum(n_recompute), 0)::BIGINT AS recompute_tokens,
        coalesce(sum(n_spec), 0)::BIGINT AS spec_tokens,
        CASE WHEN count(n_accepted) = count(*) THEN sum(n_accepted)::BIGINT END AS accepted_tokens
    FROM stage.step_side
    GROUP BY ALL
) AS c
WHERE s.run_id = getvariable('run_id') AND s.step_id = c.step_id;
