-- One row per rank other than the reference (the lowest): rank, reference_rank, offset_ns (by which the rank's clock is
-- ahead: median), spread_ns (half of the range that holds the middle 80 % of the differences), n_matched.
-- A collective ends on all its ranks at nearly the same time. Recordings do not begin with the same one, so the sequences of
-- a name and message size are laid against each other at every shift, and the shift at which the differences of the ends
-- scatter least counts; of several about as good (a regular loop fits at every round) the one with the smallest offset,
-- since hosts are synchronised to milliseconds or better.
WITH name AS (
    SELECT src, id, text FROM stage.strings
    WHERE regexp_matches(text, '(?i)nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem')
),
collective AS MATERIALIZED (
    SELECT
        s.rank, hash(n.text, x.size) AS what, e.ts + s.shift_ns + e.dur AS end_ns,
        row_number() OVER (PARTITION BY s.rank, hash(n.text, x.size) ORDER BY e.ts + s.shift_ns) AS i
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    JOIN name AS n ON n.src = e.src AND n.id = e.name
    LEFT JOIN (
        SELECT src, id, json_extract_string(text, '$."In msg nelems"') AS size FROM stage.strings
        WHERE json_valid(text) AND contains(text, 'In msg nelems')
    ) AS x ON x.src = e.src AND x.id = e.extra
    WHERE e.cat = 1 AND s.role = 'trace' AND e.ts IS NOT NULL AND e.dur >= 0
),
reference AS (SELECT min(rank) AS rank FROM stage.sources WHERE role = 'trace'),
reference_end AS MATERIALIZED (
    SELECT what, i, end_ns FROM collective WHERE rank = (SELECT rank FROM reference)
),
common AS (  -- the two most frequent kinds that a rank shares with the reference
    SELECT c.rank, c.what, c.n, r.n AS n_reference
    FROM (SELECT rank, what, count(*) AS n FROM collective GROUP BY ALL) AS c
    JOIN (SELECT what, count(*) AS n FROM collective WHERE rank = (SELECT rank FROM reference) GROUP BY ALL) AS r USING (what)
    WHERE c.rank <> (SELECT rank FROM reference)
    QUALIFY row_number() OVER (PARTITION BY c.rank ORDER BY c.n DESC, c.what) <= 2
),
probe AS (  -- up to 64 of them, from the middle of the sequence
    SELECT c.rank, c.what, c.i, c.end_ns
    FROM collective AS c
    JOIN common AS m ON m.rank = c.rank AND m.what = c.what
    WHERE c.i > m.n / 2 - 32 AND c.i <= m.n / 2 + 32
),
shift AS (
    SELECT m.rank, m.what, unnest(range(-least(m.n, 1024), least(m.n_reference, 1024) + 1)) AS lead_n FROM common AS m
),
laid AS MATERIALIZED (  -- by itself, so that the join below is by equality: laid against each other pair by pair it is endless
    SELECT p.rank, p.what, h.lead_n, p.i + h.lead_n AS i, p.end_ns
    FROM probe AS p
    JOIN shift AS h ON h.rank = p.rank AND h.what = p.what
),
tried AS (
    SELECT
        l.rank, l.what, l.lead_n, count(*) AS n, avg(l.end_ns - r.end_ns) AS middle_ns,
        stddev_pop(l.end_ns - r.end_ns) AS scatter_ns
    FROM laid AS l
    JOIN reference_end AS r ON r.what = l.what AND r.i = l.i
    GROUP BY ALL
),
fitting AS (
    SELECT * FROM tried
    QUALIFY n >= least(8, max(n) OVER (PARTITION BY rank, what))
        AND n >= 0.5 * max(n) OVER (PARTITION BY rank, what)
),
chosen AS (
    SELECT rank, what, lead_n
    FROM (SELECT *, min(scatter_ns) OVER (PARTITION BY rank, what) AS best_ns FROM fitting)
    WHERE scatter_ns <= 2 * best_ns + 1000
    QUALIFY row_number() OVER (PARTITION BY rank, what ORDER BY abs(middle_ns), abs(lead_n)) = 1
),
moved AS MATERIALIZED (
    SELECT c.rank, c.what, c.i + h.lead_n AS i, c.end_ns
    FROM chosen AS h
    JOIN collective AS c ON c.rank = h.rank AND c.what = h.what
),
matched AS (
    SELECT m.rank, m.end_ns - r.end_ns AS ahead_ns FROM moved AS m JOIN reference_end AS r ON r.what = m.what AND r.i = m.i
)
SELECT
    rank, (SELECT rank FROM reference) AS reference_rank, round(median(ahead_ns))::BIGINT AS offset_ns,
    round((quantile_cont(ahead_ns, 0.9) - quantile_cont(ahead_ns, 0.1)) / 2)::BIGINT AS spread_ns, count(*) AS n_matched
FROM matched
GROUP BY rank
ORDER BY rank;
