-- One row: steps in which prompts rode along with requests that decode, over those of which it is known what that cost.
-- steps            how many
-- reqs             Σ decoding requests
-- waited_ns        Σ over them of the step's time
-- delay_ns         Σ over them of the part that the prompts added
-- alone_ns         ns of such a step without prompts, mean
-- step_ns          ns of such a step, mean
-- device_ns        Σ of the delays, each step once
-- chunk_tokens     prompt tokens in such a step, mean
WITH step AS (
    SELECT
        *, busy_ns + coalesce(idle_ns, 0) AS dur_ns,
        kind = 'mixed' AND interference_ns IS NOT NULL AND decode_reqs > 0 AND prefill_tokens > 0 AS rides
    FROM steps
    WHERE run_id = $run_id AND trusted IS NOT false AND busy_ns > 0
)
SELECT
    count(*) FILTER (WHERE rides) AS steps, coalesce(sum(decode_reqs) FILTER (WHERE rides), 0)::DOUBLE AS reqs,
    coalesce(sum(decode_reqs::DOUBLE * dur_ns) FILTER (WHERE rides), 0)::DOUBLE AS waited_ns,
    coalesce(sum(decode_reqs::DOUBLE * greatest(interference_ns, 0)) FILTER (WHERE rides), 0)::DOUBLE AS delay_ns,
    avg(dur_ns - greatest(interference_ns, 0)) FILTER (WHERE rides) AS alone_ns, avg(dur_ns) FILTER (WHERE rides) AS step_ns,
    coalesce(sum(greatest(interference_ns, 0)) FILTER (WHERE rides), 0)::BIGINT AS device_ns,
    avg(prefill_tokens) FILTER (WHERE rides) AS chunk_tokens
FROM step
