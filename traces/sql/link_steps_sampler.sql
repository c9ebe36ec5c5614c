-- stage.label_event of ranks without labels or frames: a step is a forward pass and the sampling behind it. Times in ns.
-- In the order of launching, a forward begins with a graph launch, an embedding look-up or attention (head); sampling kernels and
-- copies to the host end a step (tail), and so does picking the rows to sample. A step ends behind the tail that has the next head before the next tail; what is
-- launched from there on prepares the next step.
CREATE TABLE stage.ordered AS
SELECT
    a.rank, a.kernel_id, a.kind, n.text AS name, coalesce(l.start_ns, a.start_ns) AS launched_ns, a.start_ns + a.dur_ns AS end_ns,
    coalesce(l.pid, c.pid) AS pid, coalesce(l.tid, c.tid) AS tid, coalesce(l.is_graph, false) AS is_graph,
    o.op, row_number() OVER (PARTITION BY a.rank ORDER BY coalesce(l.start_ns, a.start_ns), a.start_ns, a.kernel_id) AS pos
FROM stage.activity AS a
LEFT JOIN stage.launch AS l ON l.src = a.src AND l.corr = a.corr
LEFT JOIN (
    SELECT e.src, e.ext, any_value(t.text) AS op
    FROM stage.events AS e
    JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name
    WHERE e.cat = 10 AND e.ext IS NOT NULL AND t.text IN ('aten::embedding', 'aten::index', 'aten::argmax', 'aten::multinomial')
    GROUP BY ALL
) AS o ON o.src = a.src AND o.ext = coalesce(a.ext, l.ext)
LEFT JOIN stage.compute_thread AS c ON c.src = a.src AND a.kind = 'cpu_op'
LEFT JOIN stage.strings AS n ON n.src = a.src AND n.id = a.name
WHERE a.valid AND a.rank NOT IN (SELECT rank FROM stage.label_event);

INSERT INTO stage.label_event
WITH marked AS (
    SELECT
        *,
        regexp_matches(name, '(?i)argmax|gumbel|top_?k_?top_?p|topk.*sampl|sampling|multinomial|rejection_?sampl')
            OR op IN ('aten::argmax', 'aten::multinomial')
            OR (NOT is_graph AND op = 'aten::index' AND regexp_matches(name, 'gather'))
            OR (kind = 'memcpy' AND regexp_matches(name, '(?i)DtoH|Device *-> *(Pageable|Pinned|Host)|DeviceToHost')) AS is_tail,
        (op = 'aten::embedding' AND kind = 'kernel') OR regexp_matches(name, '(?i)attention|attn|fmha|flash_fwd')
            OR (regexp_matches(name, '(?i)embedding') AND NOT regexp_matches(name, '(?i)rot'))
            OR (is_graph AND NOT coalesce(lag(is_graph) OVER (PARTITION BY rank ORDER BY pos), false)) AS is_head
    FROM stage.ordered
),
ahead AS (
    SELECT
        *,
        min(CASE WHEN is_head THEN pos END) OVER following_rows AS next_head,
        min(CASE WHEN is_tail THEN pos END) OVER following_rows AS next_tail
    FROM marked
    WINDOW following_rows AS (PARTITION BY rank ORDER BY pos ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
),
cut AS (
    SELECT
        rank, pid, tid, launched_ns, end_ns,
        coalesce(sum(CASE WHEN is_tail AND next_head < coalesce(next_tail, 9223372036854775807) THEN 1 ELSE 0 END) OVER (
            PARTITION BY rank ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS step_no,
        is_tail, is_head
    FROM ahead
),
grouped AS (
    SELECT
        rank, mode(pid) AS pid, mode(tid) AS tid, step_no, min(launched_ns) AS start_ns, max(launched_ns) AS end_ns,
        bool_or(is_head) AS has_head, bool_or(is_tail) AS has_tail
    FROM cut
    GROUP BY rank, step_no
)
SELECT rank, pid, tid, step_no, start_ns, end_ns, 1, NULL, [], 'graph'
FROM grouped
WHERE has_head AND has_tail;
