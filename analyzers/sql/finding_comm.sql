-- One row per device with collectives: how much of them nothing else hides.
-- rank, device
-- kernels        collectives
-- comm_ns        ns with a collective
-- explained_ns   of these, ns in which the device did nothing else
-- roof_fraction  share of the link's rate, weighted by time; NULL: not known
-- roof_known_ns  ns of the collectives of which it is known
-- top_name       the collective that takes most time
WITH act AS (
    SELECT rank, device, name, coalesce(category, 'other') = 'comm' AS comm, start_ns, start_ns + dur_ns AS end_ns, roof_fraction, dur_ns
    FROM kernels
    WHERE run_id = $run_id AND valid AND dur_ns > 0
        AND (rank, device) IN (SELECT (rank, device) FROM kernels WHERE run_id = $run_id AND valid AND category = 'comm')
),
reach AS (
    SELECT
        *, max(end_ns) OVER (PARTITION BY rank, device ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS any_end,
        max(end_ns) OVER (PARTITION BY rank, device, comm ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS own_end
    FROM act
),
part AS (
    SELECT
        *, greatest(0, end_ns - greatest(start_ns, coalesce(any_end, start_ns))) AS any_ns,
        greatest(0, end_ns - greatest(start_ns, coalesce(own_end, start_ns))) AS own_ns
    FROM reach
)
SELECT
    rank, device, count(*) FILTER (WHERE comm) AS kernels, coalesce(sum(own_ns) FILTER (WHERE comm), 0)::BIGINT AS comm_ns,
    (coalesce(sum(any_ns), 0) - coalesce(sum(own_ns) FILTER (WHERE NOT comm), 0))::BIGINT AS explained_ns,
    sum(roof_fraction * dur_ns) FILTER (WHERE comm) / sum(dur_ns) FILTER (WHERE comm AND roof_fraction IS NOT NULL) AS roof_fraction,
    coalesce(sum(dur_ns) FILTER (WHERE comm AND roof_fraction IS NOT NULL), 0)::BIGINT AS roof_known_ns,
    arg_max(name, dur_ns) FILTER (WHERE comm) AS top_name
FROM part
GROUP BY rank, device
ORDER BY explained_ns DESC, rank, device
