"""Columns of the staging tables that small logs (ledger, requests, metrics) are read into. Times are epoch ns."""

from __future__ import annotations

import pyarrow as pa

_I64, _STR, _F64, _BOOL = pa.int64(), pa.string(), pa.float64(), pa.bool_()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("src", pa.uint32(), nullable=False)] + [pa.field(k, v) for k, v in columns.items()])


LOG_TABLES: dict[str, pa.Schema] = {
    # one row per scheduler iteration of one engine core
    "ledger_steps": _schema(
        pid=_I64,
        seq=_I64,  # from 0, per engine core
        sched_start_ns=_I64,
        sched_end_ns=_I64,
        result_start_ns=_I64,  # update_from_output begins; NULL: never came
        result_end_ns=_I64,
        mono_start_ns=_I64,  # monotonic clock at sched_start
        total_tokens=_I64,
        running=_I64,
        waiting=_I64,
        kv_usage=_F64,  # share of KV blocks in use, 0..1
    ),
    # one row per scheduled request of a step
    "ledger_rows": _schema(
        pid=_I64,
        seq=_I64,
        engine_request_id=_STR,
        new_tokens=_I64,  # scheduled in this step, speculative ones included
        computed_before=_I64,  # tokens whose KV existed before this step (prefix-cache hits included)
        prompt_tokens=_I64,
        output_before=_I64,  # output tokens known when scheduled
        spec_tokens=_I64,  # of new_tokens, speculative
        accepted_tokens=_I64,  # output tokens that came of this step; NULL: result never came
        is_new=_BOOL,  # first time scheduled
        is_resumed=_BOOL,  # first time after a preemption
    ),
    # one row per event in a request's life inside the engine
    "ledger_requests": _schema(
        pid=_I64,
        engine_request_id=_STR,
        event=_STR,  # 'queued' | 'scheduled' (first) | 'preempted' | 'finished'
        ts_ns=_I64,
        session_id=_STR,
        prompt_tokens=_I64,
        output_tokens=_I64,
        cached_tokens=_I64,  # prefix-cache hit, on 'scheduled'
        arrival_ns=_I64,  # when the front end took the request, on 'queued'
        reason=_STR,  # 'stop' | 'length' | 'abort' | …, on 'finished'
    ),
    # one row per queued request with at least one whole block
    "ledger_prompts": _schema(
        pid=_I64,
        engine_request_id=_STR,
        prompt_tokens=_I64,
        block_keys=pa.list_(pa.uint64()),  # of the prompt up to the end of each whole block
    ),
    # profiler marks, hook failures, KV evictions, engine facts
    "ledger_marks": _schema(
        pid=_I64,
        kind=_STR,  # 'header' | 'profile_{start,stop}_{begin,end,failed}' | 'kv_evicted' | 'error'
        ts_ns=_I64,
        value=_I64,  # e.g. blocks evicted
        text=_STR,  # JSON for 'header', the message for 'error'
    ),
    # one row per request the client sent
    "requests": _schema(
        client_request_id=_STR,
        **{"pass": _STR},  # 'warmup' | 'control' | 'profiled'
        session_id=_STR,
        parent_session_id=_STR,
        turn=_I64,  # from 0
        planned_ns=_I64,  # when it should have been sent; NULL in a closed loop
        sent_ns=_I64,
        first_token_ns=_I64,
        last_token_ns=_I64,
        finished_ns=_I64,
        prompt_tokens=_I64,  # from the API's usage
        cached_tokens=_I64,
        output_tokens=_I64,
        status=_STR,  # 'ok' | 'error' | 'aborted'
        error=_STR,
        tool_ns=_I64,  # planned wait for a tool after this turn
        think_ns=_I64,  # planned think time after this turn
    ),
    "tokens": _schema(client_request_id=_STR, i=_I64, ts_ns=_I64),
    # one row per request whose prompt the client knows, see readers/prompts.py
    "prompts": _schema(
        client_request_id=_STR,
        **{"pass": _STR},
        prompt_tokens=_I64,
        prefix_keys=pa.list_(pa.uint64()),  # one per token of prompt and output
        tail_keys=pa.list_(pa.uint64()),  # one per token of the prompt; NULL: segments are not known
        segment_roles=pa.list_(_STR),
        segment_starts=pa.list_(_I64),
    ),
    "metrics": _schema(ts_ns=_I64, name=_STR, labels=_STR, value=_F64),
    # one row per sample of a device's sensors; units as in table telemetry
    "telemetry": _schema(
        device=_I64,
        source=_STR,  # as in table sensors
        ts_ns=_I64,
        power_w=_F64,
        power_instant_w=_F64,
        energy_j=_F64,  # counter; may wrap at 2^32 mJ or start anew
        sm_util=_F64,
        mem_util=_F64,
        sm_active=_F64,
        dram_active=_F64,
        tensor_active=_F64,
        fp16_active=_F64,
        fp32_active=_F64,
        fp64_active=_F64,
        pcie_bytes_s=_F64,
        pcie_tx_bytes_s=_F64,
        pcie_rx_bytes_s=_F64,
        nvlink_bytes_s=_F64,
        nvlink_tx_bytes_s=_F64,
        nvlink_rx_bytes_s=_F64,
        sm_clock_mhz=_F64,
        mem_clock_mhz=_F64,
        memory_used_bytes=_I64,
        temperature_c=_F64,
        throttle=_STR,
        resident=_BOOL,
        cpu_util=_F64,
        cpu_busy_s=_F64,  # counters, where a log has them in place of a share: busy time of all CPUs, and all of it
        cpu_total_s=_F64,
    ),
    # one row per device and source of a sensor log
    "sensors": _schema(device=_I64, source=_STR, name=_STR, uuid=_STR, power_period_ns=_I64, power_limit_w=_F64),
}
