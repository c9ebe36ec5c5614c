-- Check, one row: are all ranks of the process group here? value: ranks missing; NULL where no file states the group's size.
-- Reads stage.sources.
WITH stated AS (
    SELECT rank, try_cast(meta -> 'distributedInfo' ->> 'world_size' AS BIGINT) AS world_size
    FROM stage.sources
    WHERE role = 'trace'
),
world AS (SELECT max(world_size) AS n FROM stated),
absent AS (
    SELECT list(r.rank ORDER BY r.rank) AS ranks, count(*) AS n
    FROM (SELECT unnest(range(coalesce((SELECT least(coalesce(n, 0), 65536) FROM world), 0))) AS rank) AS r
    WHERE r.rank NOT IN (SELECT rank FROM stated WHERE rank IS NOT NULL)
)
SELECT
    NULL::INTEGER AS rank, 'missing_ranks' AS check_id,
    CASE WHEN a.n > 0 THEN 'warning' ELSE 'ok' END AS status,
    CASE WHEN w.n IS NOT NULL THEN a.n::DOUBLE END AS value, 0::DOUBLE AS threshold,
    '["gaps.cause", "devices"]' AS affects,
    CASE
        WHEN w.n IS NULL THEN 'no file states how many ranks there were'
        WHEN a.n = 0 THEN format('all {} ranks are here', w.n)
        ELSE format(
            '{} of {} ranks are missing ({}{}): waits for them cannot be told from idle time, and nothing is known of their devices. Give the '
            || 'directory with the traces of all ranks', a.n, w.n, array_to_string(a.ranks[1:16], ', '), CASE WHEN a.n > 16 THEN ', …' ELSE '' END)
    END AS message
FROM world AS w
CROSS JOIN absent AS a
WHERE EXISTS (SELECT 1 FROM stated);
