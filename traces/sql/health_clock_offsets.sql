-- Check, one row per rank that was compared with the reference rank: how far apart are their clocks? value: ns.
SELECT
    rank, 'clock_offset' AS check_id,
    CASE WHEN spread_ns > 1000000 THEN 'warning' ELSE 'ok' END AS status,
    offset_ns::DOUBLE AS value, 1000000::DOUBLE AS threshold,
    '["gaps.cause"]' AS affects,
    format('the clock of rank {} is {} {:.1f} µs against rank {} (spread {:.1f} µs over {} collectives){}', rank,
        CASE WHEN offset_ns >= 0 THEN 'ahead by' ELSE 'behind by' END, abs(offset_ns) / 1e3, reference_rank, spread_ns / 1e3, n_matched,
        CASE
            WHEN applied THEN ': its times were moved by that'
            WHEN spread_ns > 1000000 THEN ': too uncertain to correct, so waits for other ranks are not to be believed'
            ELSE '' END) AS message
FROM clock_offsets
WHERE run_id = $run_id
ORDER BY rank;
