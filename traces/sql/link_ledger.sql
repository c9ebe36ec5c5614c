-- Matches labelled steps to ledger steps in order (method §2). Asynchronous scheduling runs ahead of the labels by a
-- few steps, so the shift between the two sequences is not assumed: of the shifts near the one the clocks suggest, the one
-- with the most equal token counts wins. Steps that schedule no token are part of both sequences only where the engine
-- runs them, so they are left out of both.
CREATE TABLE stage.ledger_order AS
SELECT pid, seq, sched_start_ns, result_end_ns, total_tokens, row_number() OVER (ORDER BY sched_start_ns, pid, seq) AS pos
FROM stage.ledger_steps
WHERE total_tokens > 0;

CREATE TABLE stage.label_order AS
SELECT s.step_id, s.rank, s.host_start_ns, l.total_tokens, row_number() OVER (PARTITION BY s.rank ORDER BY s.seq) AS pos
FROM stage.step AS s
JOIN stage.label AS l USING (labels)
WHERE l.total_tokens IS DISTINCT FROM 0;

CREATE TABLE stage.ledger_shift AS
WITH guess AS (
    SELECT l.rank, median(g.pos - l.pos)::BIGINT AS shift
    FROM stage.label_order AS l
    ASOF JOIN stage.ledger_order AS g ON g.sched_start_ns <= l.host_start_ns
    GROUP BY ALL
),
tried AS (SELECT rank, shift + d AS shift, abs(d) AS distance FROM guess, range(-3, 4) AS r(d))
SELECT t.rank, arg_max(t.shift, (matched, -distance)) AS shift
FROM (
    SELECT t.rank, t.shift, t.distance, count(*) FILTER (WHERE g.total_tokens = l.total_tokens) AS matched
    FROM tried AS t
    JOIN stage.label_order AS l USING (rank)
    LEFT JOIN stage.ledger_order AS g ON g.pos = l.pos + t.shift
    GROUP BY ALL
) AS t
GROUP BY ALL;

UPDATE stage.step AS s
SET source = 'ledger', ledger_pid = m.pid, ledger_seq = m.seq,
    host_end_ns = greatest(s.label_end_ns, least(s.host_end_ns, coalesce(m.result_end_ns, s.host_end_ns)))
FROM (
    SELECT l.step_id, g.pid, g.seq, g.result_end_ns
    FROM stage.label_order AS l
    JOIN stage.ledger_shift AS h USING (rank)
    JOIN stage.ledger_order AS g ON g.pos = l.pos + h.shift
    WHERE l.total_tokens IS NULL OR l.total_tokens = g.total_tokens
) AS m
WHERE m.step_id = s.step_id;
