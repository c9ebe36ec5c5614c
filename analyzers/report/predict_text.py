"""A prediction for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from analyzers.prediction import Prediction
from analyzers.report.text import DASH, count, duration, percent, table
from analyzers.scenario import Expectation

_NS = 1e9
_PREFIXES = ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def predict_lines(expected: Expectation) -> list[str]:
    """All tables, top to bottom."""
    found = expected.prediction
    sections: tuple[Callable[[Expectation, Prediction], list[str]], ...] = (
        _phases, _communication, _stages, _memory, _batches, _beside, _turns, _sums,
    )  # fmt: skip
    lines = _head(expected)
    for section in sections:
        part = section(expected, found)
        lines += ["", *part] if part else []
    return lines + [f"note: {note}" for note in expected.notes]


def si(value: float | None, unit: str, digits: int = 4) -> str:
    """A number with a decimal prefix: 43.37 TFLOP."""
    if value is None:
        return DASH
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def _head(expected: Expectation) -> list[str]:
    found = expected.prediction
    where = expected.device or "given peaks"
    degrees = (
        ("tensor parallel", expected.tensor_parallel), ("pipeline stages", expected.pipeline_parallel),
        ("replicas", expected.data_parallel),
    )  # fmt: skip
    many = "".join(f" × {size} ({name})" for name, size in degrees if size > 1)
    many += f", experts over {expected.expert_parallel}" if expected.expert_parallel > 1 else ""
    many += "; figures of one device" if many else ""
    types = expected.dtype if expected.dtype == expected.weights_dtype else f"{expected.weights_dtype} weight products"
    return [
        f"{expected.model} on {where}{many}, {types}, convention: {found.convention}",
        (
            f"peaks {si(found.peak_flops, 'FLOP/s')}, {si(found.peak_bandwidth, 'B/s')} ({expected.peak_source}); "
            f"ridge {found.ridge:.1f} FLOP/byte"
        ),
    ]


def _phases(expected: Expectation, found: Prediction) -> list[str]:
    header = ["step", "tokens", "operations", "bytes", "FLOP/byte", "of weights", "bound", "compute", "memory", "floor"]
    if found.prefill.serial_s is not None:
        header.append("by kernel")
    rows = []
    for name, phase in (("prefill", found.prefill), ("decode", found.decode)):
        row = [
            name, count(phase.tokens), si(phase.flops, "FLOP"), si(phase.bytes, "B"), f"{phase.intensity:,.1f}",
            f"{phase.weight_intensity:,.1f}", phase.side, _time(phase.compute_s), _time(phase.memory_s),
            _time(phase.floor_s),
        ]  # fmt: skip
        rows.append([*row, _time(phase.serial_s)] if len(header) > len(row) else row)
    context = expected.question.decode_context
    return [
        f"One step; decode at {context:,} tokens of context",
        *table(header, rows, drop=("of weights", "FLOP/byte", "bytes", "operations", "by kernel")),
    ]


def _communication(_: Expectation, found: Prediction) -> list[str]:
    rows = [
        [
            name, item.purpose, item.kind.replace("_", "-"), str(item.ranks), count(item.count),
            si(item.message_bytes, "B"), si(item.bus_bytes, "B"), _time(item.floor_s),
        ]
        for name, phase in (("prefill", found.prefill), ("decode", found.decode))
        for item in phase.communication
    ]  # fmt: skip
    header = ["step", "for", "collective", "ranks", "number", "each", "sent per rank", "floor"]
    return ["Communication in one step", *table(header, rows)] if rows else []


def _stages(_: Expectation, found: Prediction) -> list[str]:
    """Where there are several stages or replicas."""
    whole, lines = found.deployment, []
    if len(found.stages) > 1:
        header = ["stage", "layers", "weights", "cache per token", "prefill", "decode"]
        rows = [
            [
                str(item.stage), f"{item.layers:g}", si(item.weights_bytes, "B"), si(item.kv_bytes_per_token, "B"),
                _time(item.prefill_s), _time(item.decode_s),
            ]
            for item in found.stages
        ]  # fmt: skip
        room = {True: "fits", False: "does not fit", None: "unknown whether it fits"}[whole.fits_in_flight]
        lines = [
            "Pipeline, one device of each stage", *table(header, rows),
            (
                f"  a step every {_time(found.prefill.period_s)} of prefill or {_time(found.decode.period_s)} of decode at "
                f"best, without bubbles: {whole.requests_in_flight} decoding requests in flight, "
                f"{si(whole.kv_bytes_in_flight, 'B')} of cache on a device ({room})"
            ),
        ]  # fmt: skip
    if whole.devices > 1:
        lines.append(
            f"All {whole.devices} devices at the floors: prefill {count(found.prefill.tokens_per_s)} tokens/s, decode "
            f"{count(found.decode.tokens_per_s)} tokens/s"
        )
    return lines


def _memory(expected: Expectation, found: Prediction) -> list[str]:
    need = found.memory
    lines = [
        "Memory of one device",
        (
            f"  weights {si(need.weights_bytes, 'B')}, read in {_time(need.weights_read_s)}; cache "
            f"{si(found.kv_bytes_per_token, 'B')} per token, {si(need.kv_bytes, 'B')} for {expected.question.batch} "
            f"at {expected.question.decode_context:,}; together {si(need.total_bytes, 'B')}"
        ),
    ]
    after = ", ".join(f"{si(item.kv_bytes, 'B')} after {item.more:,} more" for item in found.kv_growth)
    lines.append(f"  a request's cache: {after}")
    if need.usable_bytes is None or need.headroom_bytes is None:
        return [*lines, "  whether it fits is not known: give --gpu"]
    fits = "fits" if need.fits else "does not fit"
    lines.append(f"  {fits} {si(need.usable_bytes, 'B')}: headroom {si(need.headroom_bytes, 'B')}")
    if need.kv_capacity_tokens:
        each = f"{count(need.kv_capacity_requests)} requests at this context"
        lines.append(f"  room for {need.kv_capacity_tokens:,} tokens of cache, {each}")
    return lines


def _batches(expected: Expectation, found: Prediction) -> list[str]:
    priced = expected.question.price is not None
    header = ["batch", "TPOT floor", "tokens/s", "FLOP/byte", "bound", "cache", "fits"] + ["per 1M tokens"] * priced
    rows = [
        [
            str(item.batch), _time(item.tpot_s), count(item.tokens_per_s), f"{item.intensity:,.1f}", item.side,
            si(item.kv_bytes, "B"), _yes(item.fits), *([_price(item.price_per_million)] * priced),
        ]
        for item in found.batches
    ]  # fmt: skip
    ridge = found.ridge_batch
    if ridge.batch is None:
        told = (
            f"  decode never reaches the ridge of {ridge.ridge:.1f} at this context: with any batch it stays below "
            f"{ridge.ceiling:.1f} FLOP/byte"
        )
    else:
        room = {True: "fits", False: "does not fit", None: "unknown whether it fits"}[ridge.fits]
        told = f"  decode reaches the ridge at batch {ridge.batch:,}, with {si(ridge.kv_bytes, 'B')} of cache ({room})"
    return ["Decode against batch", *table(header, rows), told]


def _beside(expected: Expectation, found: Prediction) -> list[str]:
    if not found.beside:
        return []
    header = ["prefill", "step floor", "decode waits", "saved", "operations", "bytes", "FLOP/byte", "bound"]
    rows = [
        [
            f"+{item.prefill_tokens:,}", _time(item.step_s), f"+{_time(item.added_s)}", _time(item.saved_s),
            si(item.flops, "FLOP"), si(item.bytes, "B"), f"{item.intensity:,.1f}", item.side,
        ]
        for item in found.beside
    ]  # fmt: skip
    return [f"Prefill tokens added to a decode step of {expected.question.batch}", *table(header, rows)]


def _turns(expected: Expectation, found: Prediction) -> list[str]:
    if not found.turns:
        return []
    header = ["turn", "prompt", "TTFT", "TTFT cached", "decode", "prefill share", "cached"]
    rows = [
        [
            str(item.turn), count(item.prompt_tokens), _time(item.ttft_s), _time(item.ttft_cached_s),
            _time(item.decode_s), percent(item.prefill_share), percent(item.prefill_share_cached),
        ]
        for item in found.turns
    ]  # fmt: skip
    asked = expected.question
    title = f"A conversation that grows by {asked.per_turn:,} tokens per turn, {asked.output:,} of output each"
    return [title, *table(header, rows)]


def _sums(expected: Expectation, found: Prediction) -> list[str]:
    rules, asked = found.rules, expected.question
    active = "" if rules.active_parameters == rules.parameters else f", {_billions(rules.active_parameters)} active"
    lines = [
        (
            f"Parameters {_billions(rules.parameters)}{active}; {asked.prompt:,} + {asked.output:,} tokens: "
            f"{si(rules.request_flops, 'FLOP')}"
        ),
    ]
    if rules.training_flops is not None:
        days = f"{rules.training_device_days:,.1f} device-days at the peak"
        lines.append(f"Training on {si(asked.train_tokens, 'tokens')}: {si(rules.training_flops, 'FLOP')}, {days}")
    if found.prices is not None:
        prompt, output = _price(found.prices.prefill_per_million), _price(found.prices.decode_per_million)
        lines.append(
            f"Per million tokens at the floors, {found.prices.per_device_hour:g} per device and hour: "
            f"prompt {prompt}, output {output} (batch {asked.batch})"
        )
    return lines


def _time(seconds: float | None) -> str:
    return duration(None if seconds is None else seconds * _NS)


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:,.4g} billion"


def _price(value: float | None) -> str:
    return DASH if value is None else f"{value:,.4g}"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: DASH}[value]
