-- stage.step: one row per step in order, with its host window. Times in ns.
-- The window runs to the next label's start on the thread, or to the result in the ledger where that comes first: vLLM
-- samples outside the labelled range, and waiting for a tool is no part of a step.
CREATE TABLE stage.step AS
WITH last_event AS (
    SELECT s.rank, e.pid, e.tid, max(e.ts + s.shift_ns + greatest(e.dur, 0)) AS end_ns
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    WHERE s.role = 'trace' AND e.cat BETWEEN 10 AND 17 AND e.ts IS NOT NULL AND e.dur IS NOT NULL
    GROUP BY ALL
),
windowed AS (
    SELECT
        l.rank, l.pid, l.tid, l.label, l.labels, l.source, l.start_ns AS host_start_ns, l.end_ns AS label_end_ns,
        coalesce(
            lead(l.start_ns) OVER (PARTITION BY l.rank, l.pid, l.tid ORDER BY l.start_ns),
            greatest(l.end_ns, t.end_ns)
        ) AS next_ns
    FROM stage.label_event AS l
    LEFT JOIN last_event AS t ON t.rank = l.rank AND t.pid = l.pid AND t.tid = l.tid
)
SELECT
    row_number() OVER (ORDER BY w.rank, w.host_start_ns, w.tid) AS step_id,
    row_number() OVER (PARTITION BY w.rank ORDER BY w.host_start_ns, w.tid) - 1 AS seq,
    w.rank, w.pid, w.tid, w.label, w.labels, w.host_start_ns, w.label_end_ns, w.next_ns AS host_end_ns,
    w.source,
    NULL::BIGINT AS ledger_pid,
    NULL::BIGINT AS ledger_seq
FROM windowed AS w;
