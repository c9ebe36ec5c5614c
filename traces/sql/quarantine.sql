-- Marks the activities that no sum may use (stage.activity.valid = false, with the reason) before windows are computed.
-- Durations and gaps are looked at only where they can matter (an activity of a second or more, a file that spans more
-- than an hour), so that a healthy recording costs a few scans. Segments of a CPU engine are cut by us and left alone.
UPDATE stage.activity SET valid = false, invalid_reason = 'no duration recorded'
WHERE valid AND kind <> 'cpu_op' AND dur_ns = 0;

-- A start of 0 in the file, while everything else of the file begins more than a second later.
UPDATE stage.activity AS a SET valid = false, invalid_reason = 'no start recorded'
FROM (
    SELECT s.src, s.shift_ns, min(o.start_ns) AS others_ns
    FROM stage.sources AS s
    JOIN stage.activity AS o ON o.src = s.src AND o.start_ns <> s.shift_ns AND o.valid
    GROUP BY ALL
) AS f
WHERE a.valid AND a.kind <> 'cpu_op' AND a.src = f.src AND a.start_ns = f.shift_ns AND f.others_ns - a.start_ns > 1000000000;

-- Records that lie hours away from the others of their file: the profiler shifts the first records of a later session by
-- about 10^14 ns. A group more than an hour apart is displaced where the host recorded nothing near it; without any host
-- records six hours are asked for. The largest group stays.
CREATE TABLE stage.far_group AS
WITH wide AS (
    SELECT src FROM stage.activity WHERE valid AND kind <> 'cpu_op'
    GROUP BY src HAVING max(start_ns) - min(start_ns) > 3600000000000
),
opened AS (
    SELECT
        a.kernel_id, a.src, a.start_ns, a.dur_ns,
        a.start_ns - lag(a.start_ns) OVER (PARTITION BY a.src ORDER BY a.start_ns, a.kernel_id) AS since_ns
    FROM stage.activity AS a
    JOIN wide USING (src)
    WHERE a.valid AND a.kind <> 'cpu_op'
),
grouped AS (
    SELECT
        *, count(*) FILTER (WHERE since_ns > 3600000000000)
            OVER (PARTITION BY src ORDER BY start_ns, kernel_id ROWS UNBOUNDED PRECEDING) AS number
    FROM opened
),
summed AS (
    SELECT src, number, count(*) AS n, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns, min(kernel_id) AS low_id,
        max(kernel_id) AS high_id
    FROM grouped
    GROUP BY ALL
),
compared AS (
    SELECT
        *,
        first_value(first_ns) OVER largest AS main_first_ns,
        first_value(number) OVER largest AS main_number
    FROM summed
    WINDOW largest AS (PARTITION BY src ORDER BY n DESC, number DESC ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
),
witnessed AS (
    SELECT
        c.*,
        count(e.src) AS host_records,
        count(e.src) FILTER (
            WHERE e.ts + s.shift_ns BETWEEN c.first_ns - 60000000000 AND c.last_ns + 60000000000
        ) AS host_records_near
    FROM compared AS c
    JOIN stage.sources AS s USING (src)
    LEFT JOIN stage.events AS e ON e.src = c.src AND e.cat BETWEEN 10 AND 14
    WHERE c.number <> c.main_number
    GROUP BY ALL
)
SELECT src, first_ns, last_ns, main_first_ns
FROM witnessed
WHERE host_records_near = 0 AND (host_records > 0 OR abs(first_ns - main_first_ns) > 6 * 3600000000000);

UPDATE stage.activity AS a SET valid = false,
    invalid_reason = format('lies {:.0f} s away from the other records of its file', abs(a.start_ns - g.main_first_ns) / 1e9)
FROM stage.far_group AS g
WHERE a.valid AND a.kind <> 'cpu_op' AND a.src = g.src AND a.start_ns BETWEEN g.first_ns AND g.last_ns;

-- A stream runs one activity after the other: one that ends a second or more after the next began has no true end.
UPDATE stage.activity AS a SET valid = false,
    invalid_reason = format('ends {:.1f} s after the next activity of its stream began', x.past_ns / 1e9)
FROM (
    SELECT l.kernel_id, l.start_ns + l.dur_ns - n.start_ns AS past_ns
    FROM stage.activity AS l
    ASOF JOIN stage.activity AS n
        ON n.rank = l.rank AND n.device = l.device AND n.stream = l.stream AND n.valid = l.valid AND l.start_ns < n.start_ns
    WHERE l.valid AND l.kind <> 'cpu_op' AND l.dur_ns >= 1000000000
) AS x
WHERE a.kernel_id = x.kernel_id AND x.past_ns >= 1000000000;

-- One activity of a second or more that fills over half of its rank's recording, beside others. A collective may wait
-- that long for another rank, and stays.
UPDATE stage.activity AS a SET valid = false, invalid_reason = 'fills more than half of the recording'
FROM (
    SELECT g.kernel_id
    FROM stage.activity AS g
    JOIN (
        SELECT rank, max(start_ns + dur_ns) - min(start_ns) AS span_ns, count(*) AS n
        FROM stage.activity WHERE valid AND kind <> 'cpu_op' GROUP BY rank
    ) AS r USING (rank)
    LEFT JOIN stage.strings AS t ON t.src = g.src AND t.id = g.name
    WHERE g.valid AND g.kind <> 'cpu_op' AND g.dur_ns >= 1000000000 AND r.n > 1 AND g.dur_ns > r.span_ns / 2
        AND NOT coalesce(regexp_matches(t.text, '(?i)nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all'), false)
) AS x
WHERE a.kernel_id = x.kernel_id;
