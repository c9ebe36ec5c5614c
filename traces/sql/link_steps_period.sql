-- stage.label_event of ranks with nothing else to go by: the period of the sequence of names. Times in ns.
-- The anchor is the rarest name that comes at even distances over nearly the whole recording, while another one comes at
-- even distances at least eight times as often: layers repeat inside a step, and nothing repeats evenly inside a layer.
INSERT INTO stage.label_event
WITH ordered AS (SELECT * FROM stage.ordered WHERE rank NOT IN (SELECT rank FROM stage.label_event)),
total AS (SELECT rank, max(pos) AS n_all FROM ordered GROUP BY rank),
spaced AS (
    SELECT rank, name, pos, pos - lag(pos) OVER (PARTITION BY rank, name ORDER BY pos) AS distance
    FROM ordered
),
candidate AS (
    SELECT s.rank, s.name, count(*) AS n, min(s.pos) AS first_pos, avg(s.distance) AS mean_distance
    FROM spaced AS s
    JOIN total AS t USING (rank)
    GROUP BY s.rank, s.name, t.n_all
    HAVING count(*) >= 3 AND stddev_pop(s.distance) <= 0.25 * avg(s.distance) AND count(*) * avg(s.distance) >= 0.8 * t.n_all
),
most_repeated AS (SELECT rank, max(n) AS n FROM candidate GROUP BY rank),
anchor AS (
    SELECT c.*
    FROM candidate AS c
    JOIN most_repeated AS m USING (rank)
    WHERE m.n >= 8 * c.n
    QUALIFY row_number() OVER (PARTITION BY c.rank ORDER BY c.n, c.first_pos) = 1
),
numbered AS (
    SELECT
        o.rank, o.pid, o.tid, o.launched_ns,
        sum((o.name = a.name)::INTEGER) OVER (PARTITION BY o.rank ORDER BY o.pos) AS step_no
    FROM ordered AS o
    JOIN anchor AS a USING (rank)
)
SELECT rank, mode(pid), mode(tid), step_no, min(launched_ns), max(launched_ns), 1, NULL, [], 'period'
FROM numbered
WHERE step_no > 0
GROUP BY rank, step_no;
