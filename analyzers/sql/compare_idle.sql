-- One row per device, block of its window and cause of idleness; a block without a gap of a cause has no row of it.
-- rank, device
-- block        from 0 to $blocks - 1, equal parts of the device's window
-- cause        as in gaps; 'not analyzed' where it is NULL
-- idle_ns      ns of gaps that begin in the block
SELECT
    g.rank, g.device,
    greatest(least((g.start_ns - d.window_start_ns)::DOUBLE * $blocks / (d.window_end_ns - d.window_start_ns), $blocks - 1), 0)::INTEGER
        AS block,
    coalesce(g.cause, 'not analyzed') AS cause, sum(g.dur_ns)::BIGINT AS idle_ns
FROM gaps AS g
JOIN devices AS d ON d.run_id = g.run_id AND d.rank = g.rank AND d.device = g.device
WHERE g.run_id = $run_id AND g.cause IS DISTINCT FROM 'unrecorded' AND d.window_end_ns > d.window_start_ns
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
