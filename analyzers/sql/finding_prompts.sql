-- One row: the prompts of one pass.
-- prompts   requests with a prompt
-- longest   tokens of the longest, what was cached of it left out
-- tokens    of all, computed
-- output    tokens that a request gives, mean
-- span_ns   ns from the first to the last that came
SELECT
    count(*) AS prompts, max(prompt_tokens - coalesce(cached_tokens, 0))::BIGINT AS longest,
    sum(prompt_tokens - coalesce(cached_tokens, 0))::BIGINT AS tokens, avg(output_tokens) AS output,
    (max(arrival_ns) - min(arrival_ns))::BIGINT AS span_ns
FROM requests
WHERE run_id = $run_id AND pass IS NOT DISTINCT FROM $pass AND prompt_tokens IS NOT NULL
