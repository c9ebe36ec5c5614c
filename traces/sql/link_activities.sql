-- stage.activity: one row per device activity of the run, in time order. Times in ns.
-- Activities without a usable time are kept as invalid rows, so that nothing vanishes without a reason.
CREATE TABLE stage.activity AS
SELECT
    row_number() OVER (ORDER BY s.rank, e.ts + s.shift_ns, e.src, e.seq) AS kernel_id,
    s.rank,
    coalesce(try_cast(e.device AS INTEGER), 0) AS device,
    e.stream,
    CASE e.cat WHEN 1 THEN 'kernel' WHEN 2 THEN 'memcpy' ELSE 'memset' END AS kind,
    e.src,
    e.name,
    coalesce(e.ts + s.shift_ns, 0) AS start_ns,
    coalesce(e.dur, 0) AS dur_ns,
    e.corr,
    e.ext,
    e.bytes,
    NULL::UINTEGER AS root_name,
    NULL::UINTEGER AS shapes,
    NULL::UINTEGER AS dtypes,
    e.ts IS NOT NULL AND e.dur IS NOT NULL AND e.dur >= 0 AS valid,
    CASE
        WHEN e.ts IS NULL THEN 'no usable start time'
        WHEN e.dur IS NULL THEN 'no usable duration'
        WHEN e.dur < 0 THEN 'negative duration'
    END AS invalid_reason
FROM stage.events AS e
JOIN stage.sources AS s USING (src)
WHERE e.cat IN (1, 2, 3) AND s.role = 'trace';
