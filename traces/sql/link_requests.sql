-- requests and tokens: what the client saw, joined to what the engine recorded by the id the client sent. Times in ns.
-- vLLM makes `chatcmpl-<id>-<8 hex>` or `cmpl-<id>-<i>-<8 hex>` of the id in the X-Request-Id header.
CREATE TABLE stage.engine_request AS
SELECT
    engine_request_id,
    coalesce(
        nullif(regexp_extract(engine_request_id, '^chatcmpl-(.+)-[0-9a-f]{8}$', 1), ''),
        nullif(regexp_extract(engine_request_id, '^cmpl-(.+)-[0-9]+-[0-9a-f]{8}$', 1), ''),
        engine_request_id
    ) AS client_request_id,
    min(ts_ns) FILTER (WHERE event = 'queued') AS queued_ns,
    min(ts_ns) FILTER (WHERE event = 'scheduled') AS scheduled_ns,
    max(ts_ns) FILTER (WHERE event = 'finished') AS finished_ns,
    count(*) FILTER (WHERE event = 'preempted') AS n_preemptions,
    any_value(session_id) AS session_id,
    max(prompt_tokens) AS prompt_tokens,
    max(output_tokens) FILTER (WHERE event = 'finished') AS output_tokens,
    max(cached_tokens) FILTER (WHERE event = 'scheduled') AS cached_tokens
FROM stage.ledger_requests
GROUP BY ALL;

CREATE TABLE stage.request_id AS
SELECT coalesce(e.engine_request_id, c.client_request_id) AS request_id, c.client_request_id, e.engine_request_id
FROM stage.requests AS c
FULL JOIN stage.engine_request AS e USING (client_request_id);

INSERT INTO requests (
    run_id, request_id, client_request_id, pass, session_id, parent_session_id, turn, arrival_ns, queued_ns, scheduled_ns,
    first_token_ns, last_token_ns, finished_ns, prompt_tokens, cached_tokens, output_tokens, status, queue_ns, prefill_wall_ns,
    decode_wall_ns, tool_ns, client_ns, n_preemptions, planned_ns, error
)
WITH joined AS (
    SELECT
        i.request_id, i.client_request_id, c.pass, coalesce(c.session_id, e.session_id) AS session_id, c.parent_session_id, c.turn,
        coalesce(c.sent_ns, e.queued_ns) AS arrival_ns, e.queued_ns, e.scheduled_ns, c.first_token_ns, c.last_token_ns,
        coalesce(c.finished_ns, e.finished_ns) AS finished_ns,
        CASE WHEN c.client_request_id IS NULL THEN e.prompt_tokens ELSE c.prompt_tokens END AS prompt_tokens,
        CASE WHEN c.client_request_id IS NULL THEN e.cached_tokens ELSE c.cached_tokens END AS cached_tokens,
        CASE WHEN c.client_request_id IS NULL THEN e.output_tokens ELSE c.output_tokens END AS output_tokens,
        coalesce(c.status, CASE WHEN e.finished_ns IS NULL THEN 'running' ELSE 'ok' END) AS status,
        c.tool_ns AS planned_tool_ns, e.n_preemptions, c.planned_ns, c.error,
        lead(c.sent_ns) OVER (PARTITION BY c.pass, c.session_id ORDER BY c.turn, c.sent_ns) AS next_sent_ns
    FROM stage.request_id AS i
    LEFT JOIN stage.requests AS c ON c.client_request_id = i.client_request_id
    LEFT JOIN stage.engine_request AS e ON e.engine_request_id = i.engine_request_id
)
SELECT
    getvariable('run_id'), request_id, client_request_id, pass, session_id, parent_session_id, turn, arrival_ns, queued_ns, scheduled_ns,
    first_token_ns, last_token_ns, finished_ns, prompt_tokens, cached_tokens, output_tokens, status,
    scheduled_ns - queued_ns, first_token_ns - scheduled_ns, last_token_ns - first_token_ns,
    CASE WHEN session_id IS NOT NULL THEN least(planned_tool_ns, greatest(next_sent_ns - finished_ns, 0)) END,
    CASE WHEN session_id IS NOT NULL
        THEN greatest(next_sent_ns - finished_ns, 0) - least(coalesce(planned_tool_ns, 0), greatest(next_sent_ns - finished_ns, 0)) END,
    n_preemptions, planned_ns, error
FROM joined
ORDER BY arrival_ns, request_id;

INSERT INTO tokens
SELECT getvariable('run_id'), i.request_id, t.i, t.ts_ns
FROM stage.tokens AS t
JOIN stage.request_id AS i USING (client_request_id)
ORDER BY i.request_id, t.i;

INSERT INTO metrics
SELECT getvariable('run_id'), ts_ns, name, CASE WHEN json_valid(labels) THEN labels END, value FROM stage.metrics;
