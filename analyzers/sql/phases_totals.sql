-- One row per phase: 'prefill' | 'decode' | 'other' (steps without phases) | 'unattributed' (activities of no step) | 'not split'.
-- busy_ns         device time, ns; the rows sum to the busy time of all devices
-- tokens          tokens computed in the phase (verification counts every drafted token)
-- tokens_per_device_s   tokens / busy_ns
-- tokens_per_window_s   tokens / window of the run; NULL where idle time is withheld, since steps ran that were not recorded
-- energy_j        J; NULL: not known
WITH s AS (SELECT * FROM steps WHERE run_id = $run_id),
part AS (
    SELECT 'prefill' AS phase, 1 AS place, sum(prefill_ns) AS busy_ns, sum(prefill_tokens) FILTER (WHERE prefill_ns IS NOT NULL) AS tokens FROM s
    UNION ALL
    SELECT 'decode', 2, sum(decode_ns), sum(decode_tokens) FILTER (WHERE decode_ns IS NOT NULL) FROM s
    UNION ALL
    SELECT 'other', 3, sum(other_ns), NULL FROM s
    UNION ALL
    SELECT 'not split', 4, sum(busy_ns) FILTER (WHERE prefill_ns IS NULL), NULL FROM s
    UNION ALL
    SELECT 'unattributed', 5, sum(busy_ns), NULL FROM kernels WHERE run_id = $run_id AND valid AND step_id IS NULL
)
SELECT
    p.phase, p.busy_ns::BIGINT AS busy_ns, p.tokens::BIGINT AS tokens, p.tokens * 1e9 / nullif(p.busy_ns, 0) AS tokens_per_device_s,
    CASE
        WHEN NOT EXISTS (SELECT 1 FROM health WHERE run_id = $run_id AND check_id = 'unrecorded' AND status = 'withheld')
            THEN p.tokens * 1e9 / nullif(r.window_end_ns - r.window_start_ns, 0)
    END AS tokens_per_window_s, NULL::DOUBLE AS energy_j
FROM part AS p
JOIN runs AS r ON r.run_id = $run_id
WHERE p.busy_ns > 0
ORDER BY p.place
