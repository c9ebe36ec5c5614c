-- launches: one row per runtime or driver call that puts work on a device: it carries the correlation of an activity, or
-- its name says so (a graph launch whose kernels were not recorded must be seen). Where several calls carry one
-- correlation (a runtime call and the driver call inside it) the outer one counts. Times in ns.
-- Kernels of a graph launch share its correlation, CUDA and HIP alike.
CREATE TABLE stage.correlated AS
SELECT src, corr, count(*) AS n_kernels FROM stage.activity WHERE corr IS NOT NULL GROUP BY ALL;

CREATE TABLE stage.launch AS
WITH named AS (  -- each text is looked at once, not once per call
    SELECT
        src, id, text, regexp_matches(text, 'GraphLaunch') AS is_graph,
        regexp_matches(text, 'Launch(Kernel|Cooperative|Ex|Graph)|GraphLaunch|LaunchHostFunc') AS launches
    FROM stage.strings
),
call AS (
    SELECT
        s.rank, e.src, e.pid, e.tid, t.text AS name, e.ts + s.shift_ns AS start_ns, coalesce(e.dur, 0) AS dur_ns,
        e.corr, e.ext, k.n_kernels, t.is_graph
    FROM stage.events AS e
    JOIN stage.sources AS s USING (src)
    LEFT JOIN named AS t ON t.src = e.src AND t.id = e.name
    LEFT JOIN stage.correlated AS k ON k.src = e.src AND k.corr = e.corr
    WHERE e.cat IN (11, 12) AND s.role = 'trace' AND e.ts IS NOT NULL AND (k.n_kernels IS NOT NULL OR t.launches)
    QUALIFY e.corr IS NULL OR row_number() OVER (PARTITION BY e.src, e.corr ORDER BY e.ts, e.dur DESC) = 1
)
SELECT row_number() OVER (ORDER BY rank, start_ns, src, corr) AS launch_id, * FROM call;
