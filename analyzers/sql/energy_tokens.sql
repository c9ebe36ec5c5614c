-- One row: requests that ran within the time from $start_ns to $end_ns.
-- requests        that arrived and ended in it
-- prompt_tokens, cached_tokens, output_tokens   theirs, tokens
-- crossing        that began or ended outside of it: their tokens are not among these, their energy is
SELECT
    count(*) FILTER (WHERE inside) AS requests, sum(prompt_tokens) FILTER (WHERE inside)::BIGINT AS prompt_tokens,
    sum(cached_tokens) FILTER (WHERE inside)::BIGINT AS cached_tokens, sum(output_tokens) FILTER (WHERE inside)::BIGINT AS output_tokens,
    count(*) FILTER (WHERE NOT inside AND arrival_ns < $end_ns AND coalesce(finished_ns, last_token_ns, arrival_ns) > $start_ns) AS crossing
FROM (
    SELECT *, coalesce(arrival_ns >= $start_ns AND coalesce(finished_ns, last_token_ns) <= $end_ns, false) AS inside
    FROM requests
    WHERE run_id = $run_id
)
