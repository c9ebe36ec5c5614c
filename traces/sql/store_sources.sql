-- sources: one row per file of the run, without its path.
INSERT INTO sources
SELECT getvariable('run_id'), src, name, role, format, sha256, bytes, rank, trace_id, events, kept, dropped, truncated
FROM stage.sources
ORDER BY src;
