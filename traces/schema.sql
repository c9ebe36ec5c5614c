-- The tables of a run database. Times are BIGINT nanoseconds (see runs.clock); unknown is NULL, never 0.
-- The comment behind a column is its entry in docs/data-dictionary.md, unit included.

-- One row per run in this database.
CREATE TABLE runs (
    run_id VARCHAR NOT NULL,           -- identifier, unique in the database
    name VARCHAR,                      -- what a person calls it
    created_ns BIGINT,                 -- when it was recorded, or ingested where that is not known; ns since the epoch
    source VARCHAR,                    -- 'profile' | 'attach' | 'ingest'
    engine VARCHAR,                    -- 'vllm' | 'sglang' | 'transformers' | 'unknown'
    engine_version VARCHAR,            -- as the engine states it
    device_kind VARCHAR,               -- 'cuda' | 'hip' | 'cpu'; NULL: not known
    model VARCHAR,                     -- preset, path or hub id
    dtype VARCHAR,                     -- main data type of the weights
    clock VARCHAR,                     -- 'epoch' | 'recording': what the zero of every time is
    window_start_ns BIGINT,            -- ns; start of the analysed window over all devices
    window_end_ns BIGINT,              -- ns; its end
    config JSON,                       -- manifest of our own runs, facts of the recording otherwise
    schema_version INTEGER             -- version of this schema
);

-- One row per device of a rank.
CREATE TABLE devices (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank in the process group; 0 for a single one
    device INTEGER NOT NULL,           -- device ordinal as the recording has it; 0 for a CPU engine
    name VARCHAR,                      -- as the driver names it
    vendor VARCHAR,                    -- 'nvidia' | 'amd' | 'cpu'; NULL: not known
    memory_bytes BIGINT,               -- bytes of device memory
    peak_flops DOUBLE,                 -- FLOP/s of the run's main dtype
    peak_bandwidth DOUBLE,             -- bytes/s
    peak_source VARCHAR,               -- 'calibrated' | 'user' | 'datasheet'; NULL: no peak is known
    ridge DOUBLE,                      -- FLOP/byte; peak_flops / peak_bandwidth
    window_start_ns BIGINT,            -- ns; first activity start, or the capture window of our own runs
    window_end_ns BIGINT,              -- ns; last activity end, or the capture window of our own runs
    busy_ns BIGINT,                    -- ns; union of all activities. busy + idle + unrecorded = window
    idle_ns BIGINT,                    -- ns
    unrecorded_ns BIGINT               -- ns the recording cannot speak for
);

-- One row per device activity. On a CPU engine: one exclusive segment of one operator on the compute thread.
CREATE TABLE kernels (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    device INTEGER NOT NULL,           -- device ordinal
    stream BIGINT,                     -- stream; thread id on a CPU engine
    kernel_id BIGINT NOT NULL,         -- unique in the run, ordered by rank and start
    kind VARCHAR NOT NULL,             -- 'kernel' | 'memcpy' | 'memset' | 'cpu_op'
    name VARCHAR,                      -- as recorded
    category VARCHAR,                  -- gemm, attention, kv_cache, moe, norm, activation, rope, elementwise, reduce, embedding, logits, sampling, quantize, comm, memcpy, memset, other
    dtype VARCHAR,                     -- data type the kernel computes in
    start_ns BIGINT NOT NULL,          -- ns
    dur_ns BIGINT NOT NULL,            -- ns
    busy_ns BIGINT,                    -- ns of the device's busy time that are this row's; overlap counted once, the earlier step's (then the earlier start's)
    launch_id BIGINT,                  -- launches.launch_id
    in_graph BOOLEAN,                  -- launched by a graph launch
    step_id BIGINT,                    -- steps.step_id
    step_link VARCHAR,                 -- 'launch' | 'graph' | 'stream_order' | 'time'; NULL: no step
    op_name VARCHAR,                   -- operator that launched it
    op_shapes JSON,                    -- input shapes of that operator
    op_dtypes JSON,                    -- input types of that operator
    bytes_copied BIGINT,               -- bytes moved by a memcpy or memset, as recorded
    flops DOUBLE,                      -- FLOP
    bytes DOUBLE,                      -- bytes of memory traffic; of a collective, what the rank sends
    cost_source VARCHAR,               -- 'shapes' | 'capture' | 'model'; NULL: not known
    intensity DOUBLE,                  -- FLOP/byte
    side VARCHAR,                      -- 'compute' | 'memory'
    bound VARCHAR,                     -- 'compute' | 'memory' | 'latency' | 'inefficient' | 'comm'
    roof_fraction DOUBLE,              -- roof time / measured time, 0..1
    impossible BOOLEAN,                -- roof_fraction > 1.05: then side and bound are NULL
    prefill_ns BIGINT,                 -- ns of busy_ns spent for prefill
    decode_ns BIGINT,                  -- ns of busy_ns spent for decode
    valid BOOLEAN NOT NULL,            -- false: quarantined, in no sum
    invalid_reason VARCHAR             -- why
);

-- One row per runtime or driver call that puts work on a device.
CREATE TABLE launches (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    launch_id BIGINT NOT NULL,         -- unique in the run
    pid BIGINT,                        -- process
    tid BIGINT,                        -- thread
    name VARCHAR,                      -- the call
    start_ns BIGINT,                   -- ns
    dur_ns BIGINT,                     -- ns
    correlation BIGINT,                -- correlation id as recorded
    is_graph BOOLEAN,                  -- launches a graph
    n_kernels BIGINT,                  -- device activities that carry its correlation
    step_id BIGINT                     -- step whose host window it lies in
);

-- One row per operator, runtime call or annotation of the host (python frames with --stacks).
CREATE TABLE host_events (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    pid BIGINT,                        -- process
    tid BIGINT,                        -- thread
    start_ns BIGINT,                   -- ns
    dur_ns BIGINT,                     -- ns
    kind VARCHAR,                      -- 'runtime' | 'op' | 'annotation' | 'python'
    name VARCHAR                       -- as recorded
);

-- One row per engine iteration and rank.
CREATE TABLE steps (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    step_id BIGINT NOT NULL,           -- unique in the run
    seq BIGINT,                        -- order within the rank, from 0
    label VARCHAR,                     -- the engine's own label
    source VARCHAR,                    -- 'ledger' | 'label' | 'python' | 'graph' | 'period': what the step and its counts come from
    kind VARCHAR,                      -- 'prefill' | 'decode' | 'mixed' | 'other'
    host_start_ns BIGINT,              -- ns
    host_end_ns BIGINT,                -- ns
    device_start_ns BIGINT,            -- ns; first activity
    device_end_ns BIGINT,              -- ns; last activity's end
    busy_ns BIGINT,                    -- ns; sum of its kernels' busy_ns
    idle_ns BIGINT,                    -- ns of its device span without any activity
    unrecorded_ns BIGINT,              -- ns of its device span the recording cannot speak for
    n_kernels BIGINT,                  -- device activities
    n_launches BIGINT,                 -- launches in its host window
    n_graph_launches BIGINT,           -- of these, graph launches
    n_launches_without_kernel BIGINT,  -- of these, without any recorded activity
    graph_mode VARCHAR,                -- 'none' | 'piecewise' | 'full'
    prefill_reqs BIGINT,               -- requests in prefill
    prefill_tokens BIGINT,             -- prompt tokens computed
    prefill_kv_tokens BIGINT,          -- Σ context length of the prefill requests after the step
    prefill_qq BIGINT,                 -- Σ q² over them
    prefill_qk BIGINT,                 -- Σ q·k over them
    decode_reqs BIGINT,                -- requests in decode
    decode_tokens BIGINT,              -- tokens computed for them
    decode_kv_tokens BIGINT,           -- Σ context length of the decode requests after the step
    decode_qk BIGINT,                  -- Σ q·k over them
    recompute_tokens BIGINT,           -- tokens computed again after a preemption
    spec_tokens BIGINT,                -- speculative tokens scheduled
    accepted_tokens BIGINT,            -- output tokens that came of the step
    prefill_ns BIGINT,                 -- ns; prefill + decode + other = busy
    decode_ns BIGINT,                  -- ns
    other_ns BIGINT,                   -- ns of a step without phases
    split_low_ns BIGINT,               -- ns; lower end of the interval of prefill_ns
    split_high_ns BIGINT,              -- ns; upper end
    split_method VARCHAR,              -- 'whole' | 'shapley' | 'matched'
    interference_ns BIGINT,            -- ns the decoding requests waited because a prefill rode along
    flops DOUBLE,                      -- FLOP
    bytes DOUBLE,                      -- bytes of memory traffic
    cost_coverage DOUBLE,              -- share of busy time whose cost is known, 0..1
    intensity DOUBLE,                  -- FLOP/byte
    ridge DOUBLE,                      -- FLOP/byte of the device
    side VARCHAR,                      -- 'compute' | 'memory'
    roof_fraction DOUBLE,              -- roof time / measured time
    bound VARCHAR,                     -- 'compute' | 'memory' | 'latency' | 'inefficient' | 'comm' | 'host' | 'idle'
    compute_ns BIGINT,                 -- ns; compute + memory + latency + inefficient + comm + unknown = busy
    memory_ns BIGINT,                  -- ns
    latency_ns BIGINT,                 -- ns
    inefficient_ns BIGINT,             -- ns
    comm_ns BIGINT,                    -- ns
    unknown_ns BIGINT,                 -- ns
    energy_j DOUBLE,                   -- J
    trusted BOOLEAN,                   -- false: a health check spoils its numbers
    ledger_seq BIGINT,                 -- ledger_steps.seq it was matched to
    caveats VARCHAR                    -- what the label cannot tell, as a JSON list of ids
);

-- One row per step, request and phase.
CREATE TABLE step_requests (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    step_id BIGINT NOT NULL,           -- steps.step_id
    request_id VARCHAR NOT NULL,       -- requests.request_id
    phase VARCHAR NOT NULL,            -- 'prefill' | 'decode' | 'recompute' | 'verify'
    new_tokens BIGINT,                 -- tokens computed in this step for this phase
    context_tokens BIGINT,             -- tokens in the request's context after them
    cached_tokens BIGINT,              -- prefix-cache hit, on the request's first row
    accepted_tokens BIGINT,            -- output tokens that came of it
    device_ns BIGINT,                  -- ns of device time
    energy_j DOUBLE                    -- J
);

-- One row per request.
CREATE TABLE requests (
    run_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,       -- the engine's id, else the client's
    client_request_id VARCHAR,         -- the client's id
    pass VARCHAR,                      -- 'warmup' | 'control' | 'profiled'; NULL: not our workload
    session_id VARCHAR,                -- session
    parent_session_id VARCHAR,         -- session that started this one
    turn BIGINT,                       -- from 0 within the session
    arrival_ns BIGINT,                 -- ns; the client sent it (else the engine received it)
    queued_ns BIGINT,                  -- ns; entered the scheduler's queue
    scheduled_ns BIGINT,               -- ns; first scheduled
    first_token_ns BIGINT,             -- ns; as the client saw it
    last_token_ns BIGINT,              -- ns; as the client saw it
    finished_ns BIGINT,                -- ns; the response ended
    prompt_tokens BIGINT,              -- tokens, from the API's usage (else the engine's count)
    cached_tokens BIGINT,              -- of these reused from the prefix cache, from the API's usage (else the engine's count)
    output_tokens BIGINT,              -- tokens, from the API's usage (else the engine's count)
    status VARCHAR,                    -- 'ok' | 'error' | 'aborted' | 'running'
    queue_ns BIGINT,                   -- ns; scheduled - queued
    prefill_wall_ns BIGINT,            -- ns; first token - scheduled
    decode_wall_ns BIGINT,             -- ns; last token - first token
    tool_ns BIGINT,                    -- ns waited for a tool before the next turn
    client_ns BIGINT,                  -- ns between this turn's end and the next one's arrival that are not the tool's
    prefill_device_ns BIGINT,          -- ns of device time
    decode_device_ns BIGINT,           -- ns of device time
    energy_j DOUBLE,                   -- J
    n_preemptions BIGINT,              -- times it was preempted
    planned_ns BIGINT,                 -- ns; when an open-loop workload meant to send it
    error VARCHAR                      -- why status is 'error'
);

-- One row per output token, as the client saw it.
CREATE TABLE tokens (
    run_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,       -- requests.request_id
    i BIGINT NOT NULL,                 -- from 0
    ts_ns BIGINT                       -- ns
);

-- One row per sample of a metric scraped from the server.
CREATE TABLE metrics (
    run_id VARCHAR NOT NULL,
    ts_ns BIGINT,                      -- ns; when it was scraped
    name VARCHAR,                      -- metric name
    labels JSON,                       -- its labels
    value DOUBLE                       -- its value, in the metric's own unit
);

-- One row per request whose prompt is known by keys: 64-bit hashes under a secret that was thrown away with the run.
CREATE TABLE prompts (
    run_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,       -- requests.request_id
    prompt_tokens BIGINT,              -- tokens
    key_tokens BIGINT,                 -- tokens per prefix key: 1, or the engine's block where only the engine knows the prompt
    prefix_keys UBIGINT[],             -- of the context (prompt, then output) up to every token or block: equal in two rows means equal text up to there
    tail_keys UBIGINT[]                -- per token of the prompt: equal means equal text from there to the segment's end; NULL: segments not known
);

-- One row per message of a prompt; they tile it. What the template puts before a message belongs to it.
CREATE TABLE prompt_segments (
    run_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,       -- requests.request_id
    segment BIGINT NOT NULL,           -- from 0
    role VARCHAR,                      -- 'system' | 'tools' | 'document' | 'user' | 'assistant' | 'observation'
    start_token BIGINT,                -- index of its first token
    tokens BIGINT                      -- tokens
);

-- One row per piece of a prompt; the pieces tile it.
CREATE TABLE reuse (
    run_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,       -- requests.request_id
    piece VARCHAR,                     -- 'cached' | 'fresh' | 'resent_output' | 'lost'
    cause VARCHAR,                     -- of lost: 'prefix_changed' | 'evicted' | 'block_remainder' | 'caching_off' | 'other_replica'; NULL: the block size is not known
    start_token BIGINT,                -- index of its first token
    tokens BIGINT,                     -- tokens
    role VARCHAR,                      -- role of the segment it lies in
    device_ns BIGINT,                  -- ns of device time
    energy_j DOUBLE,                   -- J
    divergence_token BIGINT,           -- index of the first different token
    divergence_role VARCHAR,           -- role of the segment that lies in
    detail VARCHAR                     -- what can be told of the cause, in words
);

-- One row per piece of device time without activity, each with one cause.
CREATE TABLE gaps (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    device INTEGER NOT NULL,           -- device ordinal
    gap_id BIGINT NOT NULL,            -- unique in the run
    start_ns BIGINT NOT NULL,          -- ns
    dur_ns BIGINT NOT NULL,            -- ns
    cause VARCHAR,                     -- no_work, tool_wait, frontend, scheduler, host_prepare, host_launch, sampling_output, sync, memcpy, launch_latency, dependency, comm_wait, host_other, unknown, unrecorded
    step_before BIGINT,                -- step of the activity before
    step_after BIGINT,                 -- step of the activity after
    detail VARCHAR                     -- evidence in words
);

-- One row per sample of a device's sensors.
CREATE TABLE telemetry (
    run_id VARCHAR NOT NULL,
    rank INTEGER,                      -- rank
    device INTEGER,                    -- device ordinal
    ts_ns BIGINT,                      -- ns
    power_w DOUBLE,                    -- W; averaged by the driver where it averages
    power_instant_w DOUBLE,            -- W; at the moment, where the driver offers both
    energy_j DOUBLE,                   -- J; counter, wraps taken out
    sm_util DOUBLE,                    -- 0..1
    mem_util DOUBLE,                   -- 0..1
    sm_active DOUBLE,                  -- 0..1
    dram_active DOUBLE,                -- 0..1
    tensor_active DOUBLE,              -- 0..1
    fp16_active DOUBLE,                -- 0..1
    fp32_active DOUBLE,                -- 0..1
    fp64_active DOUBLE,                -- 0..1
    pcie_bytes_s DOUBLE,               -- bytes/s; both directions
    pcie_tx_bytes_s DOUBLE,            -- bytes/s
    pcie_rx_bytes_s DOUBLE,            -- bytes/s
    nvlink_bytes_s DOUBLE,             -- bytes/s; both directions
    nvlink_tx_bytes_s DOUBLE,          -- bytes/s
    nvlink_rx_bytes_s DOUBLE,          -- bytes/s
    sm_clock_mhz DOUBLE,               -- MHz
    mem_clock_mhz DOUBLE,              -- MHz
    memory_used_bytes BIGINT,          -- bytes
    temperature_c DOUBLE,              -- °C
    throttle VARCHAR,                  -- reasons, comma-separated
    resident BOOLEAN,                  -- a program holds memory of the device; NULL: the sensor does not say
    cpu_util DOUBLE                    -- 0..1 of the machine's CPUs, where the CPU is the device
);

-- One row per device and source of telemetry.
CREATE TABLE sensors (
    run_id VARCHAR NOT NULL,
    rank INTEGER,                      -- rank
    device INTEGER,                    -- device ordinal
    source VARCHAR,                    -- 'nvml' | 'nvidia-smi' | 'dcgm' | 'prometheus' | 'rapl' | 'cpu'
    name VARCHAR,                      -- as the driver names the device
    uuid VARCHAR,                      -- of the device
    samples BIGINT,                    -- rows of telemetry
    period_ns BIGINT,                  -- ns between samples, median
    power_period_ns BIGINT,            -- ns between changes of the power reading, as measured; NULL: never seen to change
    power_limit_w DOUBLE,              -- W
    fields JSON                        -- columns of telemetry the device offers
);

-- One row per execution-idle interval.
CREATE TABLE execution_idle (
    run_id VARCHAR NOT NULL,
    rank INTEGER,                      -- rank
    device INTEGER,                    -- device ordinal
    start_ns BIGINT,                   -- ns
    end_ns BIGINT,                     -- ns
    min_duration_s DOUBLE,             -- s; shortest interval that counts
    energy_j DOUBLE                    -- J
);

-- One row per check of the recording itself.
CREATE TABLE health (
    run_id VARCHAR NOT NULL,
    rank INTEGER,                      -- rank; NULL: the whole run
    check_id VARCHAR NOT NULL,         -- stable id
    status VARCHAR NOT NULL,           -- 'ok' | 'warning' | 'withheld'
    value DOUBLE,                      -- what was measured, in the unit the message names
    threshold DOUBLE,                  -- where it starts to matter
    affects JSON,                      -- list of tables or numbers it spoils
    message VARCHAR                    -- what it means and what to do
);

-- One row per rank whose clock was compared with another rank's, by the ends of matching collectives.
CREATE TABLE clock_offsets (
    run_id VARCHAR NOT NULL,
    rank INTEGER NOT NULL,             -- rank
    reference_rank INTEGER NOT NULL,   -- rank it was compared with
    offset_ns BIGINT,                  -- ns by which its clock is ahead: median of the differences
    spread_ns BIGINT,                  -- ns; half of the range that holds the middle 80 % of the differences
    n_matched BIGINT,                  -- collectives compared
    applied BOOLEAN                    -- the rank's times were moved by it
);

-- One row per finding.
CREATE TABLE findings (
    run_id VARCHAR NOT NULL,
    finding_id VARCHAR NOT NULL,       -- stable id
    place BIGINT,                      -- from 1, by time_ns
    severity VARCHAR,                  -- 'info' | 'warning' | 'critical'
    title VARCHAR,                     -- in words
    cause VARCHAR,                     -- why, in words
    device_ns BIGINT,                  -- ns it explains; NULL: not recorded
    energy_j DOUBLE,                   -- J it explains
    share DOUBLE,                      -- device_ns as a share of the devices' window, 0..1
    time_ns BIGINT,                    -- ns that rank it: device_ns, else an estimate
    predicted_gain DOUBLE,             -- share of what gain_of names that goes away with the cause, 0..1; NULL: only said, or only gain_high known
    gain_low DOUBLE,                   -- lower end of its interval; NULL: not known
    gain_high DOUBLE,                  -- upper end
    gain_of VARCHAR,                   -- 'step_time' (of the engine's steps) | 'busy' | 'window' | 'energy' | 'token_intervals'
    evidence VARCHAR,                  -- SQL that shows the rows
    fix VARCHAR,                       -- the flag or change that does it
    proof JSON                         -- how to re-run with the fix: workload, engine_args, without; NULL: no run of ours shows it
);

-- One row per run of `prove`.
CREATE TABLE proofs (
    run_id VARCHAR NOT NULL,
    finding_id VARCHAR NOT NULL,       -- findings.finding_id; 'none': the run compared with itself
    created_ns BIGINT,                 -- ns since the epoch
    verdict VARCHAR,                   -- 'confirmed' | 'refuted' | 'unclear' | 'no difference'
    predicted_gain DOUBLE,             -- as findings had it
    gain_low DOUBLE,                   -- lower end of its interval
    gain_high DOUBLE,                  -- upper end
    measured_gain DOUBLE,              -- share of the engine's step time that went away, of all passes
    noise DOUBLE,                      -- what the measured gain may be off by (95 %), from the spread of equal passes
    baseline_spread DOUBLE,            -- A against A: largest difference of two baseline passes, share of their mean
    changed_spread DOUBLE,             -- B against B: the same of the changed passes
    rounds BIGINT,                     -- passes of each
    baseline_ns BIGINT,                -- ns of the engine's step time of a baseline pass, mean
    changed_ns BIGINT,                 -- ns of a changed pass, mean
    passes JSON,                       -- of each pass: side, name, step_ns, steps, requests, prompt_tokens, cached_tokens
    change JSON,                       -- what was changed: workload, engine_args, without
    directory VARCHAR                  -- where the run directories of the passes are
);

-- One row per file that was ingested.
CREATE TABLE sources (
    run_id VARCHAR NOT NULL,
    src INTEGER NOT NULL,              -- ordinal of the file
    name VARCHAR,                      -- file name
    role VARCHAR,                      -- 'trace' | 'frontend' | 'capture' | 'ledger' | 'requests' | 'metrics' | 'telemetry' | 'prompts'
    format VARCHAR,                    -- reader
    sha256 VARCHAR,                    -- of the file as it lay on disk
    bytes BIGINT,                      -- bytes on disk
    rank INTEGER,                      -- rank
    trace_id VARCHAR,                  -- the recorder's id; files that share it are slices of one recording
    events BIGINT,                     -- complete events seen
    kept JSON,                         -- rows kept, by kind
    dropped JSON,                      -- events not kept, by reason
    truncated VARCHAR                  -- what was cut off; NULL for a whole file
);

-- One row per scheduler iteration in the step ledger: the whole run, not only the profiled window.
CREATE TABLE ledger_steps (
    run_id VARCHAR NOT NULL,
    pid BIGINT,                        -- engine core
    seq BIGINT,                        -- from 0 per engine core
    pass VARCHAR,                      -- pass of the workload it fell into
    sched_start_ns BIGINT,             -- ns
    sched_end_ns BIGINT,               -- ns
    result_start_ns BIGINT,            -- ns; the engine begins to take in the result
    result_end_ns BIGINT,              -- ns
    mono_start_ns BIGINT,              -- ns of the monotonic clock at sched_start
    total_tokens BIGINT,               -- tokens scheduled
    running BIGINT,                    -- requests running
    waiting BIGINT,                    -- requests waiting
    kv_usage DOUBLE                    -- share of KV blocks in use, 0..1
);

-- One row per scheduled request of a ledger step.
CREATE TABLE ledger_rows (
    run_id VARCHAR NOT NULL,
    pid BIGINT,                        -- engine core
    seq BIGINT,                        -- ledger_steps.seq
    engine_request_id VARCHAR,         -- the engine's id
    new_tokens BIGINT,                 -- tokens scheduled, speculative ones included
    computed_before BIGINT,            -- tokens whose KV existed before the step
    prompt_tokens BIGINT,              -- prompt length
    output_before BIGINT,              -- output tokens known when scheduled
    spec_tokens BIGINT,                -- speculative tokens among new_tokens
    accepted_tokens BIGINT,            -- output tokens that came of the step
    is_new BOOLEAN,                    -- first time scheduled
    is_resumed BOOLEAN                 -- first time after a preemption
);

-- One row per mark in the ledger: engine facts, profiler calls, evictions, hook failures.
CREATE TABLE ledger_marks (
    run_id VARCHAR NOT NULL,
    pid BIGINT,                        -- process
    kind VARCHAR,                      -- 'header' | 'profile_start_begin' | 'profile_start_end' | 'profile_stop_begin' | 'profile_stop_end' | 'kv_evicted' | 'error'
    ts_ns BIGINT,                      -- ns
    value BIGINT,                      -- number that belongs to the mark
    text VARCHAR                       -- JSON or message that belongs to it
);
