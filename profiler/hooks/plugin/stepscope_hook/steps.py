"""From the scheduler's calls to ledger records.

Records (times in ns since the epoch, counts in tokens; lists of one record belong together by position)
    header   engine facts, clocks
    step     seq, t0, t1 (around schedule), m0 (monotonic at t0), total, running, waiting, kv, and per request:
             ids, new, computed (before the step), prompts, out (before), spec, first, resumed
    result   seq, r0, r1 (around update_from_output), per request with output: ids, acc (tokens), and per finished one:
             done, reason, done_out (tokens in all)
    request  id, event ('queued' | 'preempted'), ts, session, prompt, arrival, keys (of the prompt's whole blocks)
    aborted  ids, out (tokens so far), ts
    mark     mark, ts, value, text
Counts come from SchedulerOutput: the Request objects have moved on by the time schedule() returns. The hot path only
copies lists; joining them happens in the writer thread, which sees records in order.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from typing import Any

from . import ledger

_SEQ_ATTRIBUTE = "_stepscope_seq"
_numbers = itertools.count()


class _Known:
    """What the writer thread remembers of a live request."""

    __slots__ = ("output", "prompt", "scheduled")

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.output = 0
        self.scheduled = False


_live: dict[str, _Known] = {}


def on_init(_t0: int, scheduler: Any, _arguments: Any, _keywords: Any, _result: Any) -> None:
    """Scheduler.__init__: the header."""
    ledger.put(_render_header, scheduler)


def on_add_request(t0: int, _scheduler: Any, arguments: Any, keywords: Any, _result: Any) -> None:
    """Scheduler.add_request(request): it is queued from here on."""
    request = arguments[0] if arguments else keywords["request"]
    arrival_s = getattr(request, "arrival_time", None)
    ledger.put(
        _render_queued,
        (
            request.request_id,
            t0,
            getattr(request, "session_id", None),
            request.num_prompt_tokens,
            arrival_s,
            list(getattr(request, "block_hashes", None) or ()),
        ),
    )


def on_finish_requests(_t0: int, _scheduler: Any, arguments: Any, keywords: Any, _result: Any) -> None:
    """Scheduler.finish_requests(ids, status): aborted from outside."""
    ids = arguments[0] if arguments else keywords.get("request_ids")
    ids = None if ids is None else [ids] if isinstance(ids, str) else list(ids)
    ledger.put(_render_aborted, (ids, time.time_ns()))


def on_preempt(t0: int, _scheduler: Any, arguments: Any, keywords: Any, _result: Any) -> None:
    """Scheduler._preempt_request(request, …): back to the waiting queue."""
    request = arguments[0] if arguments else keywords["request"]
    ledger.put(_render_preempted, (request.request_id, t0))


def on_schedule(t0: int, scheduler: Any, _arguments: Any, _keywords: Any, output: Any) -> None:
    """Scheduler.schedule() → SchedulerOutput. Iterations that schedule nothing are no steps."""
    ledger.fail_if_asked("schedule")
    if not output.num_scheduled_tokens:
        return
    seq = next(_numbers)
    t1 = time.time_ns()
    m0 = time.monotonic_ns() - (t1 - t0)
    setattr(output, _SEQ_ATTRIBUTE, seq)
    cached = output.scheduled_cached_reqs
    new = [(r.req_id, r.num_computed_tokens, _prefilled(r)) for r in output.scheduled_new_reqs]
    spec = {k: len(v) for k, v in output.scheduled_spec_decode_tokens.items()}
    ledger.put(
        _render_step,
        (
            seq, t0, t1, m0, dict(output.num_scheduled_tokens), new,
            (list(cached.req_ids), list(cached.num_computed_tokens), _outputs(cached)),
            set(_resumed(cached)), spec,
            len(scheduler.running), len(scheduler.waiting) + len(getattr(scheduler, "skipped_waiting", ())),
            _kv_usage(scheduler),
        ),
    )  # fmt: skip


def on_result(t0: int, _scheduler: Any, arguments: Any, keywords: Any, result: Any) -> None:
    """Scheduler.update_from_output(scheduler_output, …) → {client: EngineCoreOutputs}."""
    ledger.fail_if_asked("result")
    output = arguments[0] if arguments else keywords["scheduler_output"]
    seq = getattr(output, _SEQ_ATTRIBUTE, None)
    if seq is None:
        return
    t1 = time.time_ns()
    # The engine is done with these objects but for sending them: they can be read later.
    groups = [outputs.outputs for outputs in (result.values() if isinstance(result, dict) else (result,))]
    ledger.put(_render_result, (seq, t0, t1, groups))


def on_kv_events(_t0: int, _manager: Any, _arguments: Any, _keywords: Any, events: Any) -> None:
    """KVCacheManager.take_events(): blocks that lost their content, where the engine was asked to say so."""
    if events:
        evicted = sum(len(e.block_hashes) for e in events if type(e).__name__ == "BlockRemoved")
        if evicted:
            ledger.mark("kv_evicted", value=evicted)


def _prefilled(new: Any) -> int | None:
    """Length of what a newly (re)scheduled request has to have computed: beyond the prompt it is earlier output."""
    tokens = getattr(new, "prefill_token_ids", None)
    return None if tokens is None else len(tokens)


def _outputs(cached: Any) -> list[int]:
    counts = getattr(cached, "num_output_tokens", None)
    return list(counts) if counts is not None else [-1] * len(cached.req_ids)


def _resumed(cached: Any) -> Any:
    ids = getattr(cached, "resumed_req_ids", None)
    if ids is not None:
        return ids
    flags = getattr(cached, "resumed_from_preemption", None) or ()  # older versions
    return (i for i, flag in zip(cached.req_ids, flags, strict=False) if flag)


def _kv_usage(scheduler: Any) -> float | None:
    manager = getattr(scheduler, "kv_cache_manager", None)
    usage = getattr(manager, "usage", None)
    return None if usage is None else round(float(usage), 6)


# -- writer thread ------------------------------------------------------------------------------------------------


def _render_queued(payload: tuple[str, int, str | None, int, float | None, list[Any]]) -> ledger.Record:
    request_id, ts, session, prompt, arrival_s, hashes = payload
    _live[request_id] = _Known(prompt)
    arrival = None if arrival_s is None else int(arrival_s * 1e9)
    return {
        "kind": "request", "event": "queued", "id": request_id, "ts": ts, "session": session, "prompt": prompt,
        "arrival": arrival, "keys": [_key(block) for block in hashes],
    }  # fmt: skip


# Processes of one engine share it, so that what another replica computed is known; nothing can be looked up without it.
_SECRET = os.environ.get("STEPSCOPE_LEDGER_SECRET", "").encode() or os.urandom(32)


def _key(block: Any) -> int:
    """A block's hash, which stands for the whole prompt up to its end, under the secret."""
    text = block if isinstance(block, bytes) else repr(block).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=_SECRET[:64]).digest(), "little")


def _render_preempted(payload: tuple[str, int]) -> ledger.Record:
    request_id, ts = payload
    return {"kind": "request", "event": "preempted", "id": request_id, "ts": ts}


def _render_aborted(payload: tuple[list[str] | None, int]) -> ledger.Record:
    ids, ts = payload
    gone = [i for i in (_live if ids is None else ids) if i in _live]
    outputs = [_live.pop(i).output for i in gone]
    return {"kind": "aborted", "ids": gone, "ts": ts, "out": outputs}


def _render_step(payload: Any) -> ledger.Record:
    seq, t0, t1, m0, scheduled, new, cached, resumed, spec, running, waiting, kv = payload
    computed: dict[str, int] = dict(zip(cached[0], cached[1], strict=False))
    output_before: dict[str, int] = dict(zip(cached[0], cached[2], strict=False))
    again: set[str] = set(resumed)
    for request_id, have, prefilled in new:
        computed[request_id] = have
        known = _live.get(request_id)
        if known is not None and prefilled is not None:
            output_before[request_id] = max(0, prefilled - known.prompt)
        if known is not None and known.scheduled:
            again.add(request_id)  # newer model runners send a resumed request as a new one
    record = {
        "kind": "step", "seq": seq, "t0": t0, "t1": t1, "m0": m0, "total": sum(scheduled.values()),
        "running": running, "waiting": waiting, "kv": kv, "ids": list(scheduled), "new": list(scheduled.values()),
        "computed": [computed.get(i) for i in scheduled], "prompts": [], "out": [],
        "spec": [spec.get(i, 0) for i in scheduled], "first": [], "resumed": [i in again for i in scheduled],
    }  # fmt: skip
    for request_id in scheduled:
        known = _live.get(request_id)
        out = output_before.get(request_id, 0)
        record["prompts"].append(None if known is None else known.prompt)
        record["out"].append(out if out >= 0 else None)
        record["first"].append(known is not None and not known.scheduled)
        if known is not None:
            known.scheduled = True
    return record


def _render_result(payload: tuple[int, int, int, list[Any]]) -> ledger.Record:
    seq, r0, r1, groups = payload
    rows = [(o.request_id, len(o.new_token_ids), o.finish_reason) for outputs in groups for o in outputs]
    finished: list[str] = []
    reasons: list[str] = []
    outputs: list[int] = []
    for request_id, count, reason in rows:
        known = _live.get(request_id)
        if known is not None:
            known.output += count
        if reason is not None:
            _live.pop(request_id, None)
            finished.append(request_id)
            reasons.append(str(reason))
            outputs.append(-1 if known is None else known.output)
    return {
        "kind": "result", "seq": seq, "r0": r0, "r1": r1, "ids": [r[0] for r in rows], "acc": [r[1] for r in rows],
        "done": finished, "reason": reasons, "done_out": outputs,
    }  # fmt: skip


_MODEL_FACTS = (
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "sliding_window", "tie_word_embeddings",
)  # fmt: skip
# Structured facts of a configuration that a cost model needs; everything else that is structured stays out.
_MODEL_LISTS = ("layer_types", "mlp_only_layers", "quantization_config")


def _model_facts(hf: Any) -> dict[str, Any]:
    """The numbers, switches and names of the model's configuration, as far as JSON can hold them."""
    facts = {k: getattr(hf, k, None) for k in _MODEL_FACTS}
    try:
        every = hf.to_dict()
    except Exception:  # a configuration class of the model's own may not have it
        return facts
    plain = {k: v for k, v in every.items() if isinstance(v, bool | int | float | str) or k in _MODEL_LISTS}
    return facts | {k: v for k, v in plain.items() if k not in ("_name_or_path", "dtype", "torch_dtype")}


def _render_header(scheduler: Any) -> ledger.Record:
    config = scheduler.vllm_config
    model, cache, limits = config.model_config, config.cache_config, config.scheduler_config
    hf = getattr(model, "hf_text_config", None) or model.hf_config
    vllm = __import__("sys").modules.get("vllm")
    kv = getattr(scheduler, "kv_cache_config", None)
    parallel = getattr(config, "parallel_config", None)
    return {
        "kind": "header", "pid": os.getpid(), "ts": time.time_ns(), "mono": time.monotonic_ns(), "engine": "vllm",
        "engine_version": getattr(vllm, "__version__", None), "block_size": getattr(scheduler, "block_size", None),
        "num_blocks": getattr(kv, "num_blocks", None),
        "enable_prefix_caching": bool(getattr(cache, "enable_prefix_caching", False)),
        "max_num_batched_tokens": limits.max_num_batched_tokens, "max_num_seqs": limits.max_num_seqs,
        "max_model_len": getattr(model, "max_model_len", None),
        "async_scheduling": bool(getattr(limits, "async_scheduling", False)),
        "tensor_parallel_size": getattr(parallel, "tensor_parallel_size", None),
        "pipeline_parallel_size": getattr(parallel, "pipeline_parallel_size", None),
        "data_parallel_rank": getattr(parallel, "data_parallel_rank", None),
        "data_parallel_size": getattr(parallel, "data_parallel_size", None),
        "enable_expert_parallel": getattr(parallel, "enable_expert_parallel", None),
        "kv_cache_dtype": str(getattr(cache, "cache_dtype", None)),
        "enforce_eager": bool(getattr(model, "enforce_eager", False)),
        "quantization": getattr(model, "quantization", None),
        "model": _model_facts(hf)
        | {"dtype": str(getattr(model, "dtype", None)).removeprefix("torch."), "name": str(model.model)},
    }  # fmt: skip
