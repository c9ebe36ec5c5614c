-- One row per call or annotation of the host that tells about the recording itself: rank, pid, kind, name, start_ns (ns).
-- Reads the staging tables: few distinct names are compared instead of every event's.
SELECT
    s.rank, e.pid, CASE WHEN e.cat = 13 THEN 'annotation' ELSE 'runtime' END AS kind, t.text AS name, e.ts + s.shift_ns AS start_ns
FROM stage.events AS e
JOIN (
    SELECT src, id, text FROM stage.strings
    WHERE contains(text, 'StreamWaitEvent') OR contains(text, 'EventRecord') OR contains(text, 'StreamBeginCapture')
        OR regexp_matches(text, '^capture_\d+_[A-Z]+$')
) AS t ON t.src = e.src AND t.id = e.name
JOIN stage.sources AS s ON s.src = e.src
WHERE e.cat IN (11, 12, 13) AND s.role = 'trace' AND e.ts IS NOT NULL;
