-- prompts and prompt_segments: what may be known of prompts, from our client, else from the engine's own blocks. Counts in
-- tokens. A block's tokens follow from the engine's facts; without them its keys cannot be placed and are left out.
INSERT INTO prompts
WITH client AS (
    SELECT i.request_id, p.prompt_tokens, 1 AS key_tokens, p.prefix_keys, p.tail_keys
    FROM stage.prompts AS p
    JOIN stage.request_id AS i ON i.client_request_id = p.client_request_id
    QUALIFY row_number() OVER (PARTITION BY i.request_id ORDER BY p.src) = 1
),
block AS (
    SELECT pid, max(TRY_CAST(text ->> 'block_size' AS BIGINT)) AS tokens
    FROM stage.ledger_marks WHERE kind = 'header' AND json_valid(text) GROUP BY pid
),
engine AS (
    SELECT i.request_id, p.prompt_tokens, b.tokens AS key_tokens, p.block_keys AS prefix_keys, NULL AS tail_keys
    FROM stage.ledger_prompts AS p
    JOIN stage.request_id AS i ON i.engine_request_id = p.engine_request_id
    JOIN block AS b ON b.pid = p.pid AND b.tokens > 0 AND len(p.block_keys) * b.tokens <= p.prompt_tokens
    QUALIFY row_number() OVER (PARTITION BY i.request_id ORDER BY p.src) = 1
)
SELECT getvariable('run_id'), * FROM client
UNION ALL
SELECT getvariable('run_id'), * FROM engine WHERE request_id NOT IN (SELECT request_id FROM client)
ORDER BY 2;

INSERT INTO prompt_segments
WITH part AS (
    SELECT
        i.request_id, p.prompt_tokens, unnest(p.segment_roles) AS role, unnest(p.segment_starts) AS start_token,
        generate_subscripts(p.segment_starts, 1) - 1 AS segment
    FROM (SELECT * FROM stage.prompts QUALIFY row_number() OVER (PARTITION BY client_request_id ORDER BY src) = 1) AS p
    JOIN stage.request_id AS i ON i.client_request_id = p.client_request_id
)
SELECT
    getvariable('run_id'), request_id, segment, role, start_token,
    lead(start_token, 1, prompt_tokens) OVER (PARTITION BY request_id ORDER BY segment) - start_token
FROM part
ORDER BY request_id, segment;
