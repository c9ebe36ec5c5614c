-- One row per step kind, from energy_step.
-- kind            'prefill' | 'decode' | 'mixed' | 'other'
-- steps           with device time
-- covered         of these, whose energy the sensors cover
-- resolved        and are no shorter than the sensor's period: these have energy_j of their own
-- busy_ns         device time of the covered ones, ns
-- energy_j, prefill_j, decode_j   of the covered ones, J
-- prefill_tokens, decode_tokens   computed in the covered ones
-- output_tokens   that came of the covered ones; NULL: one does not say
SELECT
    e.kind, count(*) AS steps, count(*) FILTER (WHERE e.covered) AS covered, count(*) FILTER (WHERE e.resolved) AS resolved,
    sum(e.busy_ns) FILTER (WHERE e.covered)::BIGINT AS busy_ns, sum(e.energy_j) FILTER (WHERE e.covered) AS energy_j,
    sum(e.prefill_j) FILTER (WHERE e.covered) AS prefill_j, sum(e.decode_j) FILTER (WHERE e.covered) AS decode_j,
    sum(s.prefill_tokens) FILTER (WHERE e.covered)::BIGINT AS prefill_tokens,
    sum(s.decode_tokens) FILTER (WHERE e.covered)::BIGINT AS decode_tokens,
    CASE WHEN count(*) FILTER (WHERE e.covered AND s.accepted_tokens IS NULL) = 0
        THEN sum(s.accepted_tokens) FILTER (WHERE e.covered) END::BIGINT AS output_tokens
FROM energy_step AS e
JOIN steps AS s ON s.run_id = $run_id AND s.step_id = e.step_id
GROUP BY e.kind
ORDER BY energy_j DESC NULLS LAST, e.kind
