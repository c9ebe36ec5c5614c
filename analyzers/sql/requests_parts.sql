-- request_part: one row per request and term; its wall time cut at the steps of the ledger. Times in ns.
-- request_id       key
-- term             'e2e': to the last token (to the end where it did not end well); 'ttft': to the first token
-- wall_ns          from its arrival; the parts sum to it exactly
-- frontend_ns      sent → queued in the engine: network, HTTP, tokenizer, IPC
-- queue_ns         queued → its first step, and between its steps those without it that held no prefill
-- prefill_ns       steps that computed its prompt, or computed tokens of it again after a preemption
-- interference_ns  waiting while others were prefilled: steps between its own ones that held a prefill and not this request,
--                  and of its decode steps what a prefill beside it added; NULL where nothing tells how much that is: then it
--                  is in decode_ns, and the steps it was not in are in queue_ns
-- decode_ns        the rest of the steps in which it decoded
-- preempted_ns     preempted → scheduled again. The preemption is dated to the scheduling of the step after its last one
-- gap_ns           between its steps, the engine ran none
-- stream_ns        the result of its last step → the client has it: detokenizer, IPC, HTTP
-- recompute_ns     of prefill_ns, the steps that computed tokens again
-- why              why the parts are NULL; 'no decode-only step' says why interference_ns alone is
CREATE OR REPLACE TEMP TABLE request_part AS
WITH scheduled AS (
    SELECT
        request_id, min(seq) FILTER (WHERE accepted_tokens > 0) AS first_seq, max(seq) FILTER (WHERE accepted_tokens > 0) AS last_seq,
        coalesce(sum(accepted_tokens), 0) AS accepted_tokens, count(*) FILTER (WHERE is_resumed) AS resumed
    FROM request_row
    GROUP BY request_id
),
life AS (
    SELECT
        q.request_id, t.term, t.until_seq, q.arrival_ns AS from_ns, t.until_ns, q.queued_ns, s.request_id IS NOT NULL AS was_scheduled,
        t.term = 'e2e' AND q.status <> 'ok' AND q.n_preemptions > coalesce(s.resumed, 0) AS left_preempted,
        CASE
            WHEN NOT EXISTS (FROM request_step) THEN 'no step ledger'
            WHEN q.arrival_ns IS NULL OR t.until_ns IS NULL THEN 'no end recorded'
            WHEN t.until_ns < q.arrival_ns THEN 'ends before it arrives'
            WHEN s.request_id IS NULL AND q.queued_ns IS NULL AND q.status = 'ok' THEN 'not in the ledger'
            WHEN coalesce(s.accepted_tokens, 0) < q.output_tokens THEN 'ledger incomplete'
        END AS why
    FROM requests AS q
    LEFT JOIN scheduled AS s USING (request_id),
        LATERAL (
            VALUES
                -- a step that brought no token after the last one is asynchronous scheduling running ahead
                ('e2e', CASE q.status WHEN 'ok' THEN coalesce(q.last_token_ns, q.finished_ns) ELSE q.finished_ns END,
                    CASE q.status WHEN 'ok' THEN s.last_seq END),
                ('ttft', q.first_token_ns, s.first_seq)
        ) AS t (term, until_ns, until_seq)
    WHERE q.run_id = getvariable('run_id') AND (t.term = 'e2e' OR q.first_token_ns IS NOT NULL)
),
row_of_life AS (
    SELECT
        f.request_id, f.term, f.from_ns, f.until_ns, f.queued_ns, r.seq, r.prefill, r.recompute, r.is_resumed, p.sched_ns, p.start_ns, p.end_ns,
        p.next_sched_ns, p.prefill_rows, p.alone_ns, p.with_prefill_ns, p.without_prefill_ns
    FROM life AS f
    JOIN request_row AS r ON r.request_id = f.request_id AND r.seq <= coalesce(f.until_seq, r.seq)
    JOIN request_step AS p ON p.pid = r.pid AND p.seq = r.seq
    WHERE f.why IS NULL
),
clipped AS (
    SELECT
        *, coalesce(queued_ns, min(sched_ns) OVER life) AS entered_ns,
        greatest(from_ns, least(until_ns, start_ns)) AS low_ns, max(greatest(from_ns, least(until_ns, end_ns))) OVER so_far AS high_ns
    FROM row_of_life
    WINDOW life AS (PARTITION BY request_id, term), so_far AS (PARTITION BY request_id, term ORDER BY seq ROWS UNBOUNDED PRECEDING)
),
-- Each row owns [before_ns, high_ns]: the wait before its step, and the step. They follow each other without a hole.
owned AS (
    SELECT
        *, lag(seq) OVER life IS NULL AS is_first,
        coalesce(lag(high_ns) OVER life, least(high_ns, greatest(from_ns, least(until_ns, entered_ns)))) AS before_ns,
        lag(next_sched_ns) OVER life AS preempted_at_ns,
        with_prefill_ns - CASE WHEN prefill_rows > 0 THEN end_ns - start_ns ELSE 0 END - lag(with_prefill_ns) OVER life AS others_prefill_ns,
        without_prefill_ns - CASE WHEN prefill_rows > 0 THEN 0 ELSE end_ns - start_ns END - lag(without_prefill_ns) OVER life AS others_ns
    FROM clipped
    WINDOW life AS (PARTITION BY request_id, term ORDER BY seq)
),
spans AS (
    SELECT
        *, greatest(before_ns, least(low_ns, high_ns)) - before_ns AS wait_ns, high_ns - greatest(before_ns, least(low_ns, high_ns)) AS step_ns
    FROM owned
),
divided AS (
    SELECT
        *,
        CASE WHEN is_resumed AND NOT is_first
            THEN wait_ns - greatest(0, least(wait_ns, coalesce(preempted_at_ns, before_ns) - before_ns)) ELSE 0 END AS preempted_ns,
        CASE WHEN is_first OR is_resumed THEN 0 ELSE least(wait_ns, others_prefill_ns) END AS waited_prefill_ns,
        CASE WHEN is_first THEN wait_ns WHEN is_resumed THEN 0
            ELSE least(wait_ns - least(wait_ns, others_prefill_ns), others_ns) END AS waited_ns,
        -- least() passes over a NULL: where nothing is there to compare with, nothing is taken off
        CASE WHEN prefill OR prefill_rows = 0 THEN 0 ELSE step_ns - greatest(0, least(step_ns, alone_ns)) END AS added_ns
    FROM spans
),
summed AS (
    SELECT
        request_id, term, min(before_ns) AS entered_ns, max(high_ns) AS served_ns, arg_max(next_sched_ns, seq) AS next_sched_ns,
        sum(waited_ns) AS queue_ns, sum(waited_prefill_ns) AS waited_prefill_ns, coalesce(sum(step_ns) FILTER (WHERE prefill), 0) AS prefill_ns,
        sum(waited_prefill_ns + added_ns) AS interference_ns,
        count(*) FILTER (WHERE alone_ns IS NULL AND prefill_rows > 0 AND NOT prefill) AS undivided,
        coalesce(sum(step_ns - added_ns) FILTER (WHERE NOT prefill), 0) AS decode_ns, sum(preempted_ns) AS preempted_ns,
        sum(wait_ns - preempted_ns - waited_prefill_ns - waited_ns) AS gap_ns,
        coalesce(sum(step_ns) FILTER (WHERE recompute), 0) AS recompute_ns
    FROM divided
    GROUP BY request_id, term
),
tails AS (
    SELECT
        f.*, s.* EXCLUDE (request_id, term, entered_ns, served_ns),
        -- never scheduled: it waited in the queue to its end, or (least() passes over a NULL) did not get that far
        coalesce(s.entered_ns, greatest(f.from_ns, least(f.until_ns, f.queued_ns))) AS entered_ns, s.request_id IS NULL AS unserved,
        f.until_ns - coalesce(s.served_ns, f.until_ns) AS tail_ns,
        CASE WHEN f.left_preempted AND s.next_sched_ns IS NOT NULL THEN greatest(0, f.until_ns - greatest(s.next_sched_ns, s.served_ns)) ELSE 0
            END AS lost_ns
    FROM life AS f
    LEFT JOIN summed AS s USING (request_id, term)
)
SELECT
    request_id, term, until_ns - from_ns AS wall_ns,
    CASE WHEN why IS NULL THEN entered_ns - from_ns END AS frontend_ns,
    CASE WHEN why IS NULL THEN CASE WHEN unserved THEN until_ns - entered_ns ELSE queue_ns::BIGINT END
        + CASE WHEN undivided > 0 THEN waited_prefill_ns::BIGINT ELSE 0 END END AS queue_ns,
    CASE WHEN why IS NULL THEN coalesce(prefill_ns, 0)::BIGINT END AS prefill_ns,
    CASE WHEN why IS NULL AND coalesce(undivided, 0) = 0 THEN coalesce(interference_ns, 0)::BIGINT END AS interference_ns,
    CASE WHEN why IS NULL THEN coalesce(decode_ns, 0)::BIGINT END AS decode_ns,
    CASE WHEN why IS NULL THEN coalesce(preempted_ns, 0)::BIGINT + lost_ns END AS preempted_ns,
    CASE WHEN why IS NULL THEN coalesce(gap_ns, 0)::BIGINT + CASE WHEN lost_ns > 0 THEN tail_ns - lost_ns ELSE 0 END END AS gap_ns,
    CASE WHEN why IS NULL THEN CASE WHEN lost_ns > 0 THEN 0 ELSE tail_ns END END AS stream_ns,
    CASE WHEN why IS NULL THEN coalesce(recompute_ns, 0)::BIGINT END AS recompute_ns,
    coalesce(why, CASE WHEN undivided > 0 THEN 'no decode-only step' END) AS why
FROM tails;
