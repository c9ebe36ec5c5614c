-- idle_name: one row per distinct name of a host event: name_id, kind, name, and what being inside it says about the thread.
-- class       of a call: 'sync' | 'copy' | 'launch'; of a range or frame: 'label' (of a step) | 'step' (what runs one iteration;
--             frames of it only where the engine wrote no labels) | 'forward' | 'host_prepare' | 'sampling_output' | 'scheduler' |
--             'no_work'; NULL: nothing
-- plain       a frame whose name says little: the machinery of calls
CREATE OR REPLACE TEMP TABLE idle_name AS
WITH named AS (
    SELECT DISTINCT kind, name FROM host_events WHERE run_id = getvariable('run_id') AND name IS NOT NULL AND dur_ns > 0
),
label AS (SELECT DISTINCT label FROM steps WHERE run_id = getvariable('run_id') AND source IN ('label', 'ledger') AND label IS NOT NULL)
SELECT
    row_number() OVER (ORDER BY n.kind, n.name) AS name_id, n.kind, n.name,
    CASE n.kind
        WHEN 'runtime' THEN CASE
            WHEN regexp_matches(n.name, 'Synchronize|(Stream|Event|Device|Context) Sync\b') THEN 'sync'
            WHEN regexp_matches(n.name, 'Launch(Kernel|Cooperative|Ex|Graph)|GraphLaunch|LaunchHostFunc') THEN 'launch'
            WHEN regexp_matches(n.name, 'Mem(cpy|set)') THEN 'copy'
        END
        WHEN 'annotation' THEN CASE
            WHEN l.label IS NOT NULL OR regexp_matches(n.name, '^(execute_\S*context_|step\[|ProfilerStep#)') THEN 'label'
            WHEN n.name = 'scheduler.run_batch' THEN 'step'
            WHEN regexp_matches(n.name, ': (forward|postprocess)$') THEN 'forward'
            WHEN regexp_matches(n.name, ': (preprocess|prepare\w*)$|prepare_input') THEN 'host_prepare'
            WHEN regexp_matches(n.name, ': (sample\w*|bookkeep\w*|draft|eplb|ModelRunnerOutput|AsyncModelRunnerOutput|set_async\w*)$|process_batch_result|copy_result_to_cpu')
                THEN 'sampling_output'
            WHEN n.name = 'scheduler.idle' THEN 'no_work'
            WHEN starts_with(n.name, 'scheduler.') THEN 'scheduler'
        END
        WHEN 'python' THEN CASE
            WHEN regexp_matches(n.name, ': (execute_model|run_batch|forward_batch_generation)$') THEN CASE WHEN NOT EXISTS (FROM label) THEN 'step' END
            WHEN regexp_matches(n.name, 'model_runner\w*\.py\(\d+\): (_model_forward|model_forward|forward_extend|forward_decode|_forward_raw)$') THEN 'forward'
            WHEN regexp_matches(n.name, ': (_prepare_\w*|prepare_\w*|_?preprocess|_update_states|_build_attention_metadata|init_forward_metadata\w*|get_model_worker_batch|init_new)$')
                THEN 'host_prepare'
            WHEN regexp_matches(n.name, '(^|/)sampl\w*(/[^(]*)?\.py\(|/sampl\w+/|: (_sample|sample|sample_tokens|_bookkeeping_sync|update_from_output|process_batch_result\w*|enqueue_output|handle_output)$')
                THEN 'sampling_output'
            WHEN regexp_matches(n.name, ': (schedule|get_next_batch_to_run|recv_requests|process_input_requests|dequeue|acquire_read)$') THEN 'scheduler'
        END
    END AS class,
    n.kind = 'python' AND regexp_matches(n.name, '^(<|nn\.Module|torch/nn/modules/module\.py|torch/_ops\.py|torch/utils/_contextlib\.py|contextlib\.py|functools\.py)') AS plain
FROM named AS n
LEFT JOIN label AS l ON n.kind = 'annotation' AND l.label = n.name;
