-- stage.timeline: one row per valid activity with time inside its device's window, cut to it, in order of time on each
-- device; kernel_id 0 marks the two ends of the window. Times in ns. Rows without a step come last in step_order.
CREATE TABLE stage.device_window AS
SELECT
    rank, device,
    coalesce(getvariable('window_start'), min(start_ns)) AS window_start_ns,
    coalesce(getvariable('window_end'), max(start_ns + dur_ns)) AS window_end_ns
FROM stage.activity
WHERE valid
GROUP BY ALL;

CREATE TABLE stage.timeline AS
WITH clipped AS (
    SELECT
        a.kernel_id, a.rank, a.device, 1 AS place, coalesce(l.step_id, 9223372036854775807) AS step_order,
        greatest(a.start_ns, w.window_start_ns) AS s, least(a.start_ns + a.dur_ns, w.window_end_ns) AS e
    FROM stage.activity AS a
    JOIN stage.linked AS l USING (kernel_id)
    JOIN stage.device_window AS w ON w.rank = a.rank AND w.device = a.device
    WHERE a.valid
    UNION ALL
    SELECT 0, rank, device, 0, 9223372036854775807, window_start_ns, window_start_ns FROM stage.device_window
    UNION ALL
    SELECT 0, rank, device, 2, 9223372036854775807, window_end_ns, window_end_ns FROM stage.device_window
)
SELECT kernel_id, rank, device, step_order, s, e
FROM clipped
WHERE e > s OR kernel_id = 0
ORDER BY rank, device, place, s, e DESC, kernel_id;

-- What the sweep over it leaves (sweep.py): a part per activity, and of each stretch of one step's activities the idle time
-- of the window up to its first and its last one.
CREATE TABLE stage.part (kernel_id BIGINT, busy_ns BIGINT);
CREATE TABLE stage.step_gap (rank INTEGER, device INTEGER, step_id BIGINT, low_ns BIGINT, high_ns BIGINT);
