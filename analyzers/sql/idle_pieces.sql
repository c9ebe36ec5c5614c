-- Adds to idle_piece one row per stretch of a gap of block idle_block that has one cause (method §7), with what took most of it
-- as evidence. Times in ns. Changes idle_piece; no result.
INSERT INTO idle_piece
WITH part AS MATERIALIZED (
    SELECT p.*, l.first_ns, l.last_ns FROM idle_part AS p JOIN idle_lane AS l USING (rank, device, pid, tid) WHERE p.block = getvariable('idle_block')
),
judged AS (
    SELECT
        s.gap_id, s.start_ns, s.end_ns, m.engine_id, s.late, p.known, p.first_ns IS NOT NULL AND s.start_ns BETWEEN p.first_ns AND p.last_ns AS traced,
        s.call_name, s.op_name, s.frame_name, s.scope_name, s.scope_class = 'label' AS is_label,
        m.phase, m.step_ns >= m.phase_ns AS behind_step, m.in_step, m.running, m.waiting,
        CASE
            WHEN e.cause IS NOT NULL THEN e.cause
            WHEN NOT s.late THEN p.after_cause
            WHEN NOT p.known THEN 'unknown'
            WHEN s.call_class IN ('sync', 'memcpy') THEN s.call_class
            WHEN s.class = 'forward' THEN 'host_launch'
            WHEN s.class IN ('label', 'step') THEN CASE
                WHEN coalesce(
                    CASE WHEN getvariable('idle_has_forward') THEN m.forward_ns ELSE m.launched_ns END
                        >= CASE s.class WHEN 'label' THEN m.host_ns ELSE s.range_start_ns END, false
                ) THEN
                    CASE WHEN p.work_ns < s.range_end_ns THEN 'host_launch' ELSE 'sampling_output' END
                ELSE 'host_prepare'
            END
            WHEN s.class IS NOT NULL THEN s.class
            WHEN m.in_step THEN 'sampling_output'
            WHEN s.call_class = 'launch' OR s.op_name IS NOT NULL THEN 'host_launch'
            WHEN m.phase = 'output' OR (m.phase = 'handed' AND m.step_ns >= m.phase_ns) THEN 'sampling_output'
            WHEN m.phase IS NOT NULL THEN 'scheduler'
            WHEN p.first_ns IS NULL OR s.start_ns NOT BETWEEN p.first_ns AND p.last_ns THEN 'unknown'
            WHEN m.step_ns IS NULL AND p.late_ns - p.start_ns < getvariable('idle_back_to_back_ns') THEN 'host_launch'
            ELSE 'host_other'
        END AS cause
    FROM idle_segment AS s
    JOIN part AS p USING (gap_id)
    LEFT JOIN idle_moment AS m ON m.moment_id = s.moment_id
    LEFT JOIN idle_engine AS e ON e.engine_id = m.engine_id
),
turned AS (
    SELECT *, coalesce(cause <> lag(cause) OVER (PARTITION BY gap_id ORDER BY start_ns), true)::INTEGER AS turns FROM judged
),
numbered AS (
    SELECT *, sum(turns) OVER (PARTITION BY gap_id ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS number FROM turned
),
evidence AS (
    SELECT
        gap_id, number, cause, engine_id, late, known, traced, call_name, op_name, frame_name, scope_name, is_label, phase, behind_step, in_step, running, waiting,
        min(start_ns) AS first_ns, max(end_ns) AS last_ns, sum(end_ns - start_ns) AS ns
    FROM numbered
    GROUP BY ALL
),
piece AS (
    SELECT
        *, min(first_ns) OVER whole AS start_ns, max(last_ns) OVER whole AS end_ns
    FROM evidence
    WINDOW whole AS (PARTITION BY gap_id, number)
    QUALIFY row_number() OVER (PARTITION BY gap_id, number ORDER BY ns DESC, first_ns) = 1
)
SELECT
    p.gap_id, g.rank, g.device, p.start_ns, p.end_ns, p.cause,
    CASE
        WHEN e.detail IS NOT NULL THEN e.detail
        WHEN NOT p.late THEN g.after_detail
        WHEN NOT p.known THEN 'the launch of the next activity is not recorded'
        ELSE concat_ws(
            ', ',
            coalesce(
                nullif(concat_ws(
                    ', ', 'in call ' || left(call.name, 120), 'operator ' || left(op.name, 120), CASE WHEN p.is_label THEN 'in the label of the step' ELSE 'range ' || left(scope.name, 120) END, 'frame ' || left(frame.name, 160)
                ), ''),
                CASE
                    WHEN p.in_step THEN 'behind the model, before the last work of the step'
                    WHEN p.phase = 'schedule' THEN 'engine core schedules'
                    WHEN p.phase = 'handed' AND p.behind_step THEN 'behind the step, before the engine core takes in its result'
                    WHEN p.phase = 'handed' THEN 'scheduled, before the worker begins'
                    WHEN p.phase = 'output' THEN 'engine core takes in a result'
                    WHEN p.phase = 'between' THEN 'engine core between a result and the next schedule'
                    WHEN p.traced THEN 'in no recorded range'
                    ELSE 'nothing of the thread is recorded here'
                END
            ),
            CASE WHEN g.tid >= 0 THEN 'thread ' || g.tid END,
            CASE WHEN p.running IS NOT NULL THEN format('{} running, {} waiting', p.running, coalesce(p.waiting, 0)) END
        )
    END AS detail
FROM piece AS p
JOIN part AS g USING (gap_id)
LEFT JOIN idle_engine AS e ON e.engine_id = p.engine_id
LEFT JOIN idle_name AS call ON call.name_id = p.call_name
LEFT JOIN idle_name AS op ON op.name_id = p.op_name
LEFT JOIN idle_name AS frame ON frame.name_id = p.frame_name
LEFT JOIN idle_name AS scope ON scope.name_id = p.scope_name;
