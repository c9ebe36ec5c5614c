"""What to expect of a model on a device with no run at all: floors, memory, batches, turns, price.

Every time here is a floor: what arithmetic and memory traffic take at the device's peaks.
"""

from __future__ import annotations

from collections.abc import Callable

from analyzers.costs.comm import Transfer
from analyzers.costs.work import Convention, Rates, Work
from analyzers.prediction import (
    BatchFloor,
    Beside,
    Communication,
    Deployment,
    KvGrowth,
    MemoryNeed,
    PhaseFloor,
    Prediction,
    Prices,
    Question,
    RidgeBatch,
    RulesOfThumb,
    StageFloor,
    Turn,
)

DAY_S = 86_400
HOUR_S = 3_600
KV_GROWTH = (1, 100, 2_000)  # tokens after the context
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ENDLESS_BATCH = 1 << 40


def predict(costs: Convention, rates: Rates, question: Question, *, device_bytes: int | None = None) -> Prediction:
    """All answers to `question`; `device_bytes` is the memory of one device, None where it is not known."""
    context = question.decode_context
    prefill = costs.step(prefill=question.prompt)
    decode = costs.step(batch=question.batch, context=context)
    memory = _memory(costs, rates, question, device_bytes)
    prices = None
    if question.price is not None:
        prices = Prices(
            per_device_hour=question.price,
            prefill_per_million=_per_million(question, prefill.period_s / question.prompt),
            decode_per_million=_per_million(question, decode.period_s / question.batch),
        )
    growth = [KvGrowth(more=more, tokens=context + more, kv_bytes=costs.kv_bytes(context + more)) for more in KV_GROWTH]
    return Prediction(
        convention=costs.name,
        peak_flops=rates.weights,
        peak_bandwidth=rates.bandwidth,
        ridge=rates.weights / rates.bandwidth,
        prefill=_phase(prefill, question.prompt, rates, question),
        decode=_phase(decode, question.batch, rates, question),
        kv_bytes_per_token=costs.kv_bytes_per_token,
        kv_growth=tuple(growth),
        ridge_batch=_ridge_batch(costs, context, memory),
        batches=_batches(costs, question, memory),
        memory=memory,
        stages=_stages(costs, prefill, decode),
        deployment=_deployment(costs, question, memory),
        turns=_turns(costs, question),
        beside=_beside(costs, question),
        prices=prices,
        rules=_rules(costs, rates, question),
    )


def _phase(work: Work, tokens: int, rates: Rates, question: Question) -> PhaseFloor:
    return PhaseFloor(
        tokens=tokens, flops=work.flops, bytes=work.bytes, intensity=work.intensity,
        weight_intensity=work.weight_intensity, ridge=work.ridge, side=work.side, compute_s=work.compute_s,
        memory_s=work.memory_s, comm_s=work.comm_s, comm_bytes=sum(each.bus_bytes for each in work.transfers),
        communication=tuple(_communication(each, rates.link) for each in work.transfers), floor_s=work.floor_s,
        period_s=work.period_s, serial_s=work.serial_s, tokens_per_s=question.data_parallel * tokens / work.period_s,
    )  # fmt: skip


def _communication(sent: Transfer, link: float | None) -> Communication:
    return Communication(
        purpose=sent.purpose, kind=sent.kind, ranks=sent.ranks, count=sent.count, message_bytes=sent.message_bytes,
        bus_bytes=sent.bus_bytes, wire_bytes=sent.wire_bytes, floor_s=sent.floor_s(link),
    )  # fmt: skip


def _stages(costs: Convention, prefill: Work, decode: Work) -> tuple[StageFloor, ...]:
    floors = zip(prefill.stage_s or (prefill.floor_s,), decode.stage_s or (decode.floor_s,), strict=True)
    return tuple(
        StageFloor(
            stage=i, layers=stage.layers, weights_bytes=stage.weights_bytes,
            kv_bytes_per_token=stage.kv_bytes_per_token, prefill_s=prefill_s, decode_s=decode_s,
        )
        for i, (stage, (prefill_s, decode_s)) in enumerate(zip(costs.stages, floors, strict=True))
    )  # fmt: skip


def _deployment(costs: Convention, question: Question, memory: MemoryNeed) -> Deployment:
    requests = question.batch * question.pipeline_parallel
    held, usable = requests * costs.kv_bytes(question.decode_context), memory.usable_bytes
    return Deployment(
        devices=question.parallel.devices, replicas=question.data_parallel, requests_in_flight=requests,
        kv_bytes_in_flight=held, fits_in_flight=None if usable is None else memory.weights_bytes + held <= usable,
    )  # fmt: skip


def _memory(costs: Convention, rates: Rates, question: Question, device_bytes: int | None) -> MemoryNeed:
    kv = question.batch * costs.kv_bytes(question.decode_context)
    total = costs.weights_bytes + kv
    usable = None if device_bytes is None else device_bytes * question.memory_share
    left = None if usable is None else max(0.0, usable - costs.weights_bytes)
    one = costs.kv_bytes(question.decode_context)
    requests = None if left is None or one == 0 else int(left // one)
    return MemoryNeed(
        weights_bytes=costs.weights_bytes, weights_read_s=costs.weights_bytes / rates.bandwidth, kv_bytes=kv,
        total_bytes=total, device_bytes=device_bytes, usable_bytes=usable,
        headroom_bytes=None if usable is None else usable - total, fits=None if usable is None else total <= usable,
        kv_capacity_tokens=None if left is None else int(left // costs.kv_bytes_per_token),
        kv_capacity_requests=requests,
    )  # fmt: skip


def _ridge_batch(costs: Convention, context: int, memory: MemoryNeed) -> RidgeBatch:
    endless = costs.step(batch=ENDLESS_BATCH, context=context)
    batch = None
    if endless.side == "compute":
        batch = _first(lambda size: costs.step(batch=size, context=context).side == "compute")
    kv = None if batch is None else batch * costs.kv_bytes(context)
    fits = None
    if kv is not None and memory.usable_bytes is not None:
        fits = memory.weights_bytes + kv <= memory.usable_bytes
    return RidgeBatch(
        context=context, batch=batch, ceiling=endless.intensity, ridge=endless.ridge, kv_bytes=kv, fits=fits
    )


def _first(reached: Callable[[int], bool]) -> int:
    """The smallest size for which `reached` holds, given that it does for large ones."""
    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _batches(costs: Convention, question: Question, memory: MemoryNeed) -> tuple[BatchFloor, ...]:
    context, found = question.decode_context, []
    for batch in sorted({*BATCHES, question.batch}):
        work, kv = costs.step(batch=batch, context=context), batch * costs.kv_bytes(context)
        usable = memory.usable_bytes
        found.append(BatchFloor(
            batch=batch, tpot_s=work.floor_s, tokens_per_s=question.data_parallel * batch / work.period_s, intensity=work.intensity,
            side=work.side, kv_bytes=kv, fits=None if usable is None else memory.weights_bytes + kv <= usable,
            price_per_million=_per_million(question, work.period_s / batch) if question.price is not None else None,
        ))  # fmt: skip
    return tuple(found)


def _turns(costs: Convention, question: Question) -> tuple[Turn, ...]:
    """Turn t's prompt is t × per_turn tokens long; with a cache, all but the last per_turn of them are there."""
    found = []
    for turn in range(1, (question.turns or 0) + 1):
        tokens = turn * question.per_turn
        if question.prefill_rate:
            plain, cached = tokens / question.prefill_rate, question.per_turn / question.prefill_rate
        else:
            plain = costs.step(prefill=tokens).floor_s
            cached = costs.step(prefill=question.per_turn, before=tokens - question.per_turn).floor_s
        # the first token comes with the prefill
        further = max(question.output - 1, 0)
        each = costs.step(batch=1, context=tokens + question.output // 2).floor_s
        decode = question.output / question.decode_rate if question.decode_rate else further * each
        found.append(Turn(
            turn=turn, prompt_tokens=tokens, ttft_s=plain, ttft_cached_s=cached, decode_s=decode,
            prefill_share=plain / (plain + decode), prefill_share_cached=cached / (cached + decode),
        ))  # fmt: skip
    return tuple(found)


def _beside(costs: Convention, question: Question) -> tuple[Beside, ...]:
    batch, context = question.batch, question.decode_context
    alone, found = costs.step(batch=batch, context=context), []
    for tokens in question.beside:
        work = costs.step(prefill=tokens, batch=batch, context=context)
        apart = costs.step(prefill=tokens).floor_s + alone.floor_s
        found.append(Beside(
            prefill_tokens=tokens, step_s=work.floor_s, added_s=work.floor_s - alone.floor_s,
            saved_s=apart - work.floor_s, flops=work.flops, bytes=work.bytes, intensity=work.intensity, side=work.side,
        ))  # fmt: skip
    return tuple(found)


def _rules(costs: Convention, rates: Rates, question: Question) -> RulesOfThumb:
    tokens = question.train_tokens
    training = None if tokens is None else 6 * costs.active_parameters * tokens
    return RulesOfThumb(
        parameters=costs.parameters, active_parameters=costs.active_parameters,
        request_flops=costs.request_flops(question.prompt, question.output), training_flops=training,
        training_device_days=None if training is None else training / rates.weights / DAY_S,
    )  # fmt: skip


def _per_million(question: Question, seconds_per_token: float) -> float:
    devices = question.tensor_parallel * question.pipeline_parallel  # replicas cost and do as many times more
    return (question.price or 0.0) * devices / HOUR_S * seconds_per_token * 1e6
