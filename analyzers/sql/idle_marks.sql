-- idle_mark: one row per moment at which the innermost event of a layer of idle_range changes, with that event. Times in ns.
-- lane, layer, t; name_id, class, start_ns, end_ns of the innermost event from there on, NULL where there is none.
-- As in link_cpu_activities: at nesting depth d the innermost open event is the last one which opened to depth d. Events that
-- cross each other (torn files) are given to one of the two.
CREATE OR REPLACE TEMP TABLE idle_mark AS
WITH boundary AS (
    SELECT lane, layer, range_id, start_ns AS t, 1 AS delta, -end_ns AS inner_first FROM idle_range
    UNION ALL
    SELECT lane, layer, range_id, end_ns, -1, -start_ns FROM idle_range
),
nested AS (
    SELECT *, sum(delta) OVER ordered AS depth, row_number() OVER ordered AS pos
    FROM boundary
    WINDOW ordered AS (PARTITION BY lane, layer ORDER BY t, delta, inner_first, range_id ROWS UNBOUNDED PRECEDING)
),
owned AS (
    SELECT
        lane, layer, t, pos, depth,
        last_value(CASE WHEN delta = 1 THEN range_id END IGNORE NULLS) OVER (
            PARTITION BY lane, layer, depth ORDER BY pos ROWS UNBOUNDED PRECEDING
        ) AS range_id
    FROM nested
),
final AS (  -- the last of several at one time
    SELECT lane, layer, t, arg_max(CASE WHEN depth > 0 THEN range_id ELSE 0 END, pos) AS range_id FROM owned GROUP BY lane, layer, t
)
SELECT f.lane, f.layer, f.t, r.name_id, r.class, r.start_ns, r.end_ns
FROM final AS f
LEFT JOIN idle_range AS r USING (range_id);
