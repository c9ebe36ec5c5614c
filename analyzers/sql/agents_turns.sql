-- One row per request of a pass, sessions in order of their start, turns in order.
-- request_id, session_id, parent_session_id, turn, status
-- prompt_tokens, output_tokens
-- accounted                                   its prompt was tiled: the piece columns are known
-- located                                     its messages were found, so text that moved is told from new text
-- cached, fresh, resent_output                tokens of these pieces
-- prefix_changed, evicted, block_remainder, caching_off, other_replica, cause_unknown   tokens lost, by cause
-- lost                                        tokens, all causes
-- fresh_device_ns, resent_device_ns, lost_device_ns, prefill_device_ns   ns of device time; NULL: not recorded
-- lost_energy_j, energy_j                     J
-- divergence_token, divergence_role, detail   where the prefix broke, and what can be told of it
-- ttft_ns                                     ns; sent to first token
-- ttft_without_lost_ns                        ns; the same with its prefill shortened by the lost share of its device time
-- queue_ns, prefill_ns, decode_ns, tool_ns, client_ns   ns; they sum to wall_ns. Way to the engine is in queue, way back in client
-- wall_ns                                     ns from sent to the next turn's, to its end after the last
-- waited_ns                                   ns between the turn before and this one: tool and client
WITH piece AS (
    SELECT
        request_id,
        coalesce(sum(tokens) FILTER (WHERE piece = 'cached'), 0)::BIGINT AS cached,
        coalesce(sum(tokens) FILTER (WHERE piece = 'fresh'), 0)::BIGINT AS fresh,
        coalesce(sum(tokens) FILTER (WHERE piece = 'resent_output'), 0)::BIGINT AS resent_output,
        coalesce(sum(tokens) FILTER (WHERE cause = 'prefix_changed'), 0)::BIGINT AS prefix_changed,
        coalesce(sum(tokens) FILTER (WHERE cause = 'evicted'), 0)::BIGINT AS evicted,
        coalesce(sum(tokens) FILTER (WHERE cause = 'block_remainder'), 0)::BIGINT AS block_remainder,
        coalesce(sum(tokens) FILTER (WHERE cause = 'caching_off'), 0)::BIGINT AS caching_off,
        coalesce(sum(tokens) FILTER (WHERE cause = 'other_replica'), 0)::BIGINT AS other_replica,
        coalesce(sum(tokens) FILTER (WHERE piece = 'lost' AND cause IS NULL), 0)::BIGINT AS cause_unknown,
        coalesce(sum(tokens) FILTER (WHERE piece = 'lost'), 0)::BIGINT AS lost,
        sum(device_ns) FILTER (WHERE piece = 'fresh')::BIGINT AS fresh_ns,
        sum(device_ns) FILTER (WHERE piece = 'resent_output')::BIGINT AS resent_ns,
        sum(device_ns) FILTER (WHERE piece = 'lost')::BIGINT AS lost_ns,
        sum(energy_j) FILTER (WHERE piece = 'lost') AS lost_energy_j,
        min(divergence_token) AS divergence_token, min_by(divergence_role, start_token) FILTER (WHERE divergence_token IS NOT NULL) AS divergence_role,
        min_by(detail, start_token) FILTER (WHERE cause = 'prefix_changed') AS detail
    FROM reuse
    WHERE run_id = $run_id
    GROUP BY request_id
),
located AS (SELECT DISTINCT request_id FROM prompt_segments WHERE run_id = $run_id)
SELECT
    q.request_id, q.session_id, q.parent_session_id, q.turn, q.status, q.prompt_tokens, q.output_tokens,
    p.request_id IS NOT NULL AS accounted, l.request_id IS NOT NULL AS located,
    p.cached, p.fresh, p.resent_output, p.prefix_changed, p.evicted, p.block_remainder, p.caching_off, p.other_replica, p.cause_unknown, p.lost,
    CASE WHEN q.prefill_device_ns IS NOT NULL THEN coalesce(p.fresh_ns, 0) END AS fresh_device_ns,
    CASE WHEN q.prefill_device_ns IS NOT NULL THEN coalesce(p.resent_ns, 0) END AS resent_device_ns,
    CASE WHEN q.prefill_device_ns IS NOT NULL THEN coalesce(p.lost_ns, 0) END AS lost_device_ns,
    q.prefill_device_ns, p.lost_energy_j, q.energy_j, p.divergence_token, p.divergence_role, p.detail,
    q.first_token_ns - q.arrival_ns AS ttft_ns,
    (q.first_token_ns - q.arrival_ns - (q.first_token_ns - q.scheduled_ns) * (coalesce(p.lost_ns, 0) / nullif(q.prefill_device_ns, 0)))::BIGINT AS ttft_without_lost_ns,
    q.scheduled_ns - q.arrival_ns AS queue_ns, q.first_token_ns - q.scheduled_ns AS prefill_ns, q.last_token_ns - q.first_token_ns AS decode_ns,
    coalesce(q.tool_ns, 0) AS tool_ns, q.finished_ns - q.last_token_ns + coalesce(q.client_ns, 0) AS client_ns,
    q.finished_ns - q.arrival_ns + coalesce(q.tool_ns, 0) + coalesce(q.client_ns, 0) AS wall_ns,
    lag(coalesce(q.tool_ns, 0) + coalesce(q.client_ns, 0)) OVER (PARTITION BY q.session_id ORDER BY q.turn, q.arrival_ns) AS waited_ns
FROM requests AS q
LEFT JOIN piece AS p USING (request_id)
LEFT JOIN located AS l USING (request_id)
WHERE q.run_id = $run_id AND q.pass IS NOT DISTINCT FROM $pass
ORDER BY min(q.arrival_ns) OVER (PARTITION BY q.session_id), q.session_id, q.turn, q.arrival_ns
