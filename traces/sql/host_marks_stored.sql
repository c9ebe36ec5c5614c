-- The rows of host_marks.sql from a finished database: rank, pid, kind, name, start_ns (ns).
SELECT rank, pid, kind, name, start_ns
FROM host_events
WHERE run_id = $run_id AND kind IN ('runtime', 'annotation')
    AND (contains(name, 'StreamWaitEvent') OR contains(name, 'EventRecord') OR contains(name, 'StreamBeginCapture')
        OR regexp_matches(name, '^capture_\d+_[A-Z]+$'));
