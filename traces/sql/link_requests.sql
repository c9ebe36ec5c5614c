-- requests and tokens: what the client saw, joined to what the engine recorded by the id the client sent. Times in ns.
-- vLLM makes `chatcmpl-<id>-<8 hex>` or `cmpl-<id>-<i>-<8 hex>` of the id in the X-Request-Id header; older versions leave
-- the 8 digits out. A request of several prompts or answers is several requests of the engine: the first one queued is the
-- client's row, the others are rows of their own, so that no token is told twice.
CREATE TABLE stage.engine_request AS
SELECT
    engine_request_id,
    CASE
        WHEN regexp_matches(engine_request_id, '^chatcmpl-.+-[0-9a-f]{8}$') THEN engine_request_id[10:-10]
        WHEN regexp_matches(engine_request_id, '^cmpl-.+-[0-9]+-[0-9a-f]{8}$')
            THEN regexp_extract(engine_request_id, '^cmpl-(.+)-[0-9]+-[0-9a-f]{8}$', 1)
        WHEN regexp_matches(engine_request_id, '^chatcmpl-.+$') THEN engine_request_id[10:]
        WHEN regexp_matches(engine_request_id, '^cmpl-.+-[0-9]+$') THEN regexp_extract(engine_request_id, '^cmpl-(.+)-[0-9]+$', 1)
        ELSE engine_request_id
    END AS client_request_id,
    min(ts_ns) FILTER (WHERE event = 'queued') AS queued_ns,
    min(arrival_ns) FILTER (WHERE event = 'queued') AS arrival_ns,
    min(ts_ns) FILTER (WHERE event = 'scheduled') AS scheduled_ns,
    max(ts_ns) FILTER (WHERE event = 'finished') AS finished_ns,
    max(reason) FILTER (WHERE event = 'finished') AS reason,
    count(*) FILTER (WHERE event = 'preempted') AS n_preemptions,
    any_value(session_id) AS session_id,
    max(prompt_tokens) AS prompt_tokens,
    max(output_tokens) FILTER (WHERE event = 'finished') AS output_tokens,
    max(cached_tokens) FILTER (WHERE event = 'scheduled') AS cached_tokens
FROM stage.ledger_requests
GROUP BY ALL;

CREATE TABLE stage.request_id AS
WITH client AS (
    SELECT client_request_id, src
    FROM stage.requests
    QUALIFY row_number() OVER (PARTITION BY client_request_id ORDER BY src) = 1  -- a copy of the log tells nothing new
),
engine AS (
    SELECT
        engine_request_id, client_request_id,
        row_number() OVER (PARTITION BY client_request_id ORDER BY queued_ns NULLS LAST, engine_request_id) AS nth
    FROM stage.engine_request
)
SELECT coalesce(e.engine_request_id, c.client_request_id) AS request_id, c.client_request_id, c.src, e.engine_request_id
FROM client AS c
FULL JOIN engine AS e ON e.client_request_id = c.client_request_id AND e.nth = 1;

INSERT INTO requests (
    run_id, request_id, client_request_id, pass, session_id, parent_session_id, turn, arrival_ns, queued_ns, scheduled_ns,
    first_token_ns, last_token_ns, finished_ns, prompt_tokens, cached_tokens, output_tokens, status, queue_ns, prefill_wall_ns,
    decode_wall_ns, tool_ns, client_ns, n_preemptions, planned_ns, error
)
WITH joined AS (
    SELECT
        i.request_id, i.client_request_id, c.pass, coalesce(c.session_id, e.session_id) AS session_id, c.parent_session_id, c.turn,
        coalesce(c.sent_ns, e.arrival_ns, e.queued_ns) AS arrival_ns, e.queued_ns, e.scheduled_ns, c.first_token_ns,
        c.last_token_ns, coalesce(c.finished_ns, e.finished_ns) AS finished_ns,
        coalesce(c.prompt_tokens, e.prompt_tokens) AS prompt_tokens,
        coalesce(c.cached_tokens, e.cached_tokens) AS cached_tokens,
        coalesce(c.output_tokens, e.output_tokens) AS output_tokens,
        coalesce(c.status, CASE
            WHEN e.finished_ns IS NULL THEN 'running'
            WHEN e.reason = 'abort' THEN 'aborted'
            WHEN e.reason = 'error' THEN 'error'
            ELSE 'ok'
        END) AS status,
        c.tool_ns AS planned_tool_ns, e.n_preemptions, c.planned_ns, c.error,
        -- until the next turn was sent; NULL after the last one (greatest() passes over NULL, so it is not used bare)
        lead(c.sent_ns) OVER (PARTITION BY c.pass, c.session_id ORDER BY c.turn, c.sent_ns) - c.finished_ns AS between_ns
    FROM stage.request_id AS i
    LEFT JOIN stage.requests AS c ON c.client_request_id = i.client_request_id AND c.src = i.src
    LEFT JOIN stage.engine_request AS e ON e.engine_request_id = i.engine_request_id
),
waited AS (
    SELECT
        *,
        CASE WHEN session_id IS NOT NULL AND between_ns IS NOT NULL AND planned_tool_ns IS NOT NULL
            THEN least(planned_tool_ns, greatest(between_ns, 0)) END AS tool_ns
    FROM joined
)
SELECT
    getvariable('run_id'), request_id, client_request_id, pass, session_id, parent_session_id, turn, arrival_ns, queued_ns, scheduled_ns,
    first_token_ns, last_token_ns, finished_ns, prompt_tokens, cached_tokens, output_tokens, status,
    scheduled_ns - queued_ns, first_token_ns - scheduled_ns, last_token_ns - first_token_ns,
    tool_ns, CASE WHEN tool_ns IS NOT NULL THEN greatest(between_ns, 0) - tool_ns END,
    n_preemptions, planned_ns, error
FROM waited
ORDER BY arrival_ns, request_id;

INSERT INTO tokens
SELECT getvariable('run_id'), i.request_id, t.i, t.ts_ns
FROM stage.tokens AS t
JOIN stage.request_id AS i ON i.client_request_id = t.client_request_id AND i.src = t.src
ORDER BY i.request_id, t.i;

INSERT INTO metrics
SELECT getvariable('run_id'), ts_ns, name, CASE WHEN json_valid(labels) THEN labels END, value FROM stage.metrics;
