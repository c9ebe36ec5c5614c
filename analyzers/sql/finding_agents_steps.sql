-- One row per chunk of a prompt of one pass and reason for which tokens of it were computed again, first time only: what a
-- preemption makes the engine compute is no part of it.
-- pid, seq                        the step that computed the chunk
-- request_id
-- cause, divergence_role, detail  as in reuse, the number of the segment left out
-- tokens                          lost tokens in the chunk
-- pairs                           (token, token it looks back on) of these, itself included
-- until                           where they end
-- beside                          chunks of prompts in the same step, this one included
-- chunks, computed_tokens         of the request: chunks of its prompt, and the tokens in them
-- budget_tokens                   the largest chunk of the pass
WITH span AS (
    SELECT
        r.pid, r.seq, r.engine_request_id AS request_id,
        greatest(r.computed_before, coalesce(max(r.computed_before + r.new_tokens) OVER (
            PARTITION BY r.pid, r.engine_request_id ORDER BY r.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0)) AS a,
        least(r.computed_before + r.new_tokens, r.prompt_tokens) AS b
    FROM ledger_rows AS r
    JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.engine_request_id AND q.pass IS NOT DISTINCT FROM $pass
    WHERE r.run_id = $run_id
),
chunk AS (
    SELECT
        *, count(*) OVER (PARTITION BY pid, seq) AS beside, count(*) OVER (PARTITION BY request_id) AS chunks,
        sum(b - a) OVER (PARTITION BY request_id) AS computed_tokens, max(b - a) OVER () AS budget_tokens
    FROM span
    WHERE b > a
),
part AS (
    SELECT
        c.* EXCLUDE (a, b), p.cause, p.divergence_role, regexp_replace(p.detail, ' \(segment [0-9]+\)', '', 'g') AS detail,
        greatest(c.a, p.start_token)::DOUBLE AS a, least(c.b, p.start_token + p.tokens)::DOUBLE AS b
    FROM chunk AS c
    JOIN reuse AS p ON p.run_id = $run_id AND p.request_id = c.request_id AND p.piece = 'lost'
        AND p.start_token < c.b AND p.start_token + p.tokens > c.a
)
SELECT
    pid, seq, request_id, cause, divergence_role, detail, sum(b - a) AS tokens, sum((b - a) * (a + b + 1) / 2) AS pairs,
    max(b) AS until, beside::DOUBLE AS beside, chunks::DOUBLE AS chunks, computed_tokens::DOUBLE AS computed_tokens,
    budget_tokens::DOUBLE AS budget_tokens
FROM part
WHERE b > a
GROUP BY ALL
ORDER BY pid, seq, request_id, cause, divergence_role, detail
