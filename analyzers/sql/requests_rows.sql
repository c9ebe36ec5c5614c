-- request_row: one row per ledger step and request scheduled in it.
-- pid, seq, request_id   keys
-- prefill          it had prompt tokens, or tokens to compute again after a preemption, in this step (method §3)
-- recompute        some of them were computed before
-- is_resumed       first step after a preemption
-- accepted_tokens  output tokens that came of it, NULL: its result is not recorded
CREATE OR REPLACE TEMP TABLE request_row AS
WITH reached AS (
    SELECT
        pid, seq, engine_request_id AS request_id, new_tokens, coalesce(computed_before, 0) AS computed_before, accepted_tokens,
        coalesce(is_resumed, false) AS is_resumed,
        -- without a known prompt, more tokens than a decode step computes are prefill
        coalesce(prompt_tokens, computed_before + CASE WHEN new_tokens > 1 + coalesce(spec_tokens, 0) THEN new_tokens ELSE 0 END, 0) AS prompt_tokens,
        computed_before + new_tokens
            - CASE WHEN spec_tokens > 0 THEN spec_tokens - greatest(coalesce(accepted_tokens, 1) - 1, 0) ELSE 0 END AS computed_after
    FROM ledger_rows
    WHERE run_id = getvariable('run_id')
),
marked AS (
    SELECT
        *,
        coalesce(max(computed_after) OVER (
            PARTITION BY pid, request_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS high_water
    FROM reached
)
SELECT
    pid, seq, request_id, computed_before < greatest(prompt_tokens, high_water) AS prefill, computed_before < high_water AS recompute,
    is_resumed, accepted_tokens
FROM marked;
