"""What differs between two sides before anything is measured: capture, configuration, hardware, workload, work, health."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analyzers.comparison.sides import RECORDED, Part, Side
from traces.environment import looks_secret, may_be_shown

AREAS = ("repeats", "capture", "configuration", "environment", "hardware", "workload", "work", "health")
_CLOCK_STEP, _PEAK_STEP = 0.02, 0.10  # smaller differences are within what a sensor, or a calibration, repeats
_STEP_SIZE = 0.10  # of the mean tokens of a step: windows of one run differ by less
# where a run was made, and not how
_PLACES_ARGV = ("model", "served-model-name", "host", "port", "model-path")
_PLACES_ENV = ("PYTHONPATH", "STEPSCOPE_LEDGER_DIR")
_PEAKS = "peak FLOP/s", "peak bytes/s"
_MOST_STEPS = "graph mode of most steps"  # named where no kind of step is on both sides
_TOP = ("engine", "engine_version", "model", "dtype", "device_kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same. `base`, `cand`: numbers or text; None: not known, or not given. `note`: what to mind."""

    area: str
    name: str
    base: Any
    cand: Any
    note: str = ""


def differences(base: Side, cand: Side) -> list[Difference]:
    """In the order of AREAS; a thing that two sources tell is named once."""
    found = [item for side in (base, cand) for item in _repeats(side)]
    found += _capture(base, cand)
    first, second = base.parts[0], cand.parts[0]
    found += _facts(first, second)
    found += [*_work(base, cand), *_health(first, second)]
    return sorted(found, key=lambda item: AREAS.index(item.area))


def not_recorded(base: Side, cand: Side, found: Sequence[Difference]) -> tuple[str, ...]:
    """Areas in which nothing was `found` because a side says nothing of them."""
    parts = base.parts[0], cand.parts[0]
    told: dict[str, Callable[[Part], Mapping[str, Any]]] = {
        "configuration": _configured, "environment": _environment, "hardware": _plain_hardware, "workload": _asked,
    }  # fmt: skip
    known = {
        area: all(any(_known(value) for value in read(part).values()) for part in parts) for area, read in told.items()
    }
    known["work"] = all(_any_work(side) for side in (base, cand))
    named = {item.area for item in found}
    return tuple(area for area in AREAS if not known.get(area, True) and area not in named)


def _known(value: Any) -> bool:
    return value not in (None, "unknown")


def _configured(part: Part) -> dict[str, Any]:
    """What a run says of its engine beyond what any recording with labels does: its name and its graphs."""
    return {**_arguments(part), **_argv(part), **_engine_facts(part), **_versions(part), **_model(part)}


def _any_work(side: Side) -> bool:
    return any(value is not None for value in _done(side).values()) or bool(_steps_done(side.parts[0]))


def _facts(base: Part, cand: Part) -> list[Difference]:
    """What two runs say of themselves."""
    return (
        [] if _same_run(base, cand) else [*_configuration(base, cand), *_hardware(base, cand), *_workload(base, cand)]
    )


def _same_run(base: Part, cand: Part) -> bool:
    return base.store.path == cand.store.path and base.store.run_id == cand.store.run_id


def _repeats(side: Side) -> Iterator[Difference]:
    for part in side.parts[1:]:
        for item in _facts(side.parts[0], part):
            yield Difference(
                area="repeats", name=f"{item.name} ({item.area})", base=item.base, cand=item.cand,
                note=f"runs of one side, {side.name}: they are no repeats of one thing",
            )  # fmt: skip


def _capture(base: Side, cand: Side) -> Iterator[Difference]:
    passes = [sorted({str(item.name) for item in side.passes if item.name is not None}) for side in (base, cand)]
    if any((RECORDED in names) != (RECORDED in passes[0]) for names in passes):
        yield Difference(
            area="capture", name="pass", base=", ".join(passes[0]) or None, cand=", ".join(passes[1]) or None,
            note="recording slows: a recorded pass against one that is not tells the cost of recording",
        )  # fmt: skip
    facts = [_captured(side.parts[0]) for side in (base, cand)]
    yield from _unequal("capture", *facts)


def _captured(part: Part) -> dict[str, Any]:
    config = part.facts["config"]
    profiler = next(
        (_flat(value) for key, value in _flags(config.get("engine_argv")).items() if key == "profiler-config"), {}
    )
    return {
        "source": part.facts.get("source"), "status": config.get("status"),
        "device activity": "recorded" if part.store.query(
            "SELECT 1 FROM devices WHERE run_id = ? LIMIT 1", [part.store.run_id]).height else "not recorded",
        **profiler,
    }  # fmt: skip


def _configuration(base: Part, cand: Part) -> Iterator[Difference]:
    named: set[str] = set()
    for kind in (_top, _arguments, _argv, _environment, _engine_facts, _versions, _model, _graphs):
        area = "environment" if kind is _environment else "configuration"
        values = kind(base), kind(cand)
        for item in _unequal(area, *values, both=(*values[0], *values[1]) if kind is _graphs else ()):
            key = item.name.replace("_", "-").lower()
            if key not in named and not (
                item.name == _MOST_STEPS and any(key.startswith("graph mode") for key in named)
            ):
                named.add(key)
                yield item


def _top(part: Part) -> dict[str, Any]:
    return {name: part.facts.get(name) for name in _TOP}


def _arguments(part: Part) -> dict[str, Any]:
    given = part.facts["config"].get("engine_args")
    words = [item for item in given if isinstance(item, str)] if isinstance(given, list) else []
    pairs = (item.partition("=") for item in words)
    return {key.lstrip("-").replace("_", "-"): value or "set" for key, _, value in pairs}


def _argv(part: Part) -> dict[str, Any]:
    flags = _flags(part.facts["config"].get("engine_argv"))
    return {key: value for key, value in flags.items() if key not in (*_PLACES_ARGV, "profiler-config")}


def _environment(part: Part) -> dict[str, Any]:
    given = part.facts["config"].get("engine_env")
    if not isinstance(given, dict):
        return {}
    return {str(key): value for key, value in given.items() if key not in _PLACES_ENV}


def _engine_facts(part: Part) -> dict[str, Any]:
    return _flat(part.facts["config"].get("engine_facts"))


def _versions(part: Part) -> dict[str, Any]:
    return _flat(part.facts["config"].get("versions"))


def _model(part: Part) -> dict[str, Any]:
    config = part.facts["config"].get("model_config")
    return {f"model {key}": value for key, value in _flat(config).items() if key not in ("name", "_name_or_path")}


def _graphs(part: Part) -> dict[str, Any]:
    """The graph mode of most steps of a kind, and of all; a kind that a side lacks is no difference of the mode."""
    rows = (
        part.read("graphs").filter(pl.col("graph_mode") != "not recorded").sort("steps", "graph_mode", descending=True)
    )
    most = rows.unique("kind", keep="first", maintain_order=True)
    modes = {f"graph mode of {row['kind']} steps": row["graph_mode"] for row in most.sort("kind").to_dicts()}
    return modes | ({_MOST_STEPS: most["graph_mode"][0]} if most.height else {})


def _plain_hardware(part: Part) -> dict[str, Any]:
    data = part.read("devices")
    return {
        "devices": data.height or None, "device": ", ".join(data["name"].drop_nulls().unique().sort()) or _machine(part),
        "device memory, bytes": data["memory_bytes"].max(), "throttling": ", ".join(data["throttle"].drop_nulls().unique().sort()) or None,
    }  # fmt: skip


def _hardware(base: Part, cand: Part) -> Iterator[Difference]:
    rows = [part.read("devices") for part in (base, cand)]
    yield from _unequal("hardware", *map(_plain_hardware, (base, cand)), both=("devices", "device memory, bytes"))
    for column, name, step in (
        ("sm_clock_mhz", "compute clock, MHz", _CLOCK_STEP), ("mem_clock_mhz", "memory clock, MHz", _CLOCK_STEP),
        ("peak_flops", _PEAKS[0], _PEAK_STEP), ("peak_bandwidth", _PEAKS[1], _PEAK_STEP),
    ):  # fmt: skip
        first, second = (_median(data[column]) for data in rows)
        if first and second and abs(second / first - 1) > step:
            yield Difference(area="hardware", name=name, base=first, cand=second)
        elif name in _PEAKS and bool(first) != bool(second) and all(data.height for data in rows):
            yield Difference(
                area="hardware",
                name=name,
                base=first,
                cand=second,
                note="without peaks a side has no roofline and no bounds",
            )


def _median(values: pl.Series) -> float | None:
    known = values.drop_nulls()
    return float(np.median(known.to_numpy())) if len(known) else None


def _machine(part: Part) -> Any:
    return part.facts["config"].get("device_name")


def _workload(base: Part, cand: Part) -> Iterator[Difference]:
    for item in _unequal("workload", _asked(base), _asked(cand)):
        yield Difference(
            area="workload",
            name=item.name,
            base=item.base,
            cand=item.cand,
            note="the sides were asked different things",
        )


def _asked(part: Part) -> dict[str, Any]:
    """The workload's options one by one, so that what differs is one of them."""
    config = part.facts["config"]
    workload = config.get("workload")
    known = (
        {key: value for key, value in workload.items() if key in ("requests", "sessions")}
        if isinstance(workload, dict)
        else {}
    )
    spec = workload.get("spec") if isinstance(workload, dict) else None
    known["seed"] = config.get("seed")
    if isinstance(spec, str):
        name, _, options = spec.partition(":")
        known["workload"] = name
        known |= {key: value for key, _, value in (item.partition("=") for item in options.split(",") if item)}
    return known


def _work(base: Side, cand: Side) -> Iterator[Difference]:
    """What was really done, per pass: it differs where passes of one run had other workloads, or where requests failed."""
    sums = [_done(side) for side in (base, cand)]
    for name in sums[0]:
        if sums[0][name] != sums[1][name] and None not in (sums[0][name], sums[1][name]):
            note = "of a pass" if name != "failed requests" else "a failed request is in no latency"
            yield Difference(area="work", name=name, base=sums[0][name], cand=sums[1][name], note=note)
    first, second = base.parts[0], cand.parts[0]
    if not _same_run(first, second) and any(side["requests"] is None for side in sums):
        yield from _recorded_work(first, second)


def _recorded_work(base: Part, cand: Part) -> Iterator[Difference]:
    """Of recordings without requests: the kinds of steps, and how large a step of a kind is, beyond _STEP_SIZE."""
    done = [_steps_done(part) for part in (base, cand)]
    kinds = [", ".join(side) or None for side in done]
    if kinds[0] != kinds[1] and None not in kinds:
        yield Difference(
            area="work", name="kinds of steps", base=kinds[0], cand=kinds[1], note="of the recorded window"
        )
    for kind in [kind for kind in done[0] if kind in done[1]]:
        for name, first in done[0][kind].items():
            second = done[1][kind][name]
            if first != second and abs(second - first) > _STEP_SIZE * max(first, second):
                yield Difference(
                    area="work", name=f"{name} of a {kind} step", base=first, cand=second, note="mean of the window"
                )


def _steps_done(part: Part) -> dict[str, dict[str, float]]:
    """Mean tokens of a recorded step by kind, in order of their names."""
    rows = (
        part.read("steps")
        .group_by("kind")
        .agg(pl.col("prefill_tokens", "decode_tokens").fill_null(0).mean())
        .sort("kind")
    )
    return {
        str(row["kind"]): {"prompt tokens": float(row["prefill_tokens"]), "decoded tokens": float(row["decode_tokens"])}
        for row in rows.to_dicts()
    }  # fmt: skip


def _done(side: Side) -> dict[str, float | None]:
    data = pl.concat([item.requests for item in side.passes]) if side.passes else None
    if data is None or not data.height:
        return dict.fromkeys(("requests", "failed requests", "prompt tokens", "output tokens"))
    ok, passes = data.filter("ok"), len(side.passes)
    return {
        "requests": data.height / passes, "failed requests": (data.height - ok.height) / passes,
        "prompt tokens": _per(ok["prompt_tokens"].sum(), passes), "output tokens": _per(ok["output_tokens"].sum(), passes),
    }  # fmt: skip


def _per(total: Any, passes: int) -> float | None:
    return total / passes if total else None


def _health(base: Part, cand: Part) -> Iterator[Difference]:
    found = [_checks(part) for part in (base, cand)]
    for check in sorted(set(found[0]) | set(found[1])):
        first, second = (side.get(check, ("ok", "")) for side in found)
        if first[0] != second[0]:
            yield Difference(area="health", name=check, base=first[0], cand=second[0], note=second[1] or first[1])


def _checks(part: Part) -> dict[str, tuple[str, str]]:
    rows = part.store.query(
        "SELECT check_id, status, message FROM health WHERE run_id = ? AND status <> 'ok' ORDER BY status",
        [part.store.run_id],
    )
    return {row["check_id"]: (row["status"], row["message"] or "") for row in rows.to_dicts()}


def _unequal(
    area: str, base: Mapping[str, Any], cand: Mapping[str, Any], *, both: Collection[str] = ()
) -> Iterator[Difference]:
    """Names whose values differ; those in `both` only where both sides know one."""
    for name in dict.fromkeys((*base, *cand)):
        first, second = base.get(name), cand.get(name)
        if first != second and not (name in both and None in (first, second)):
            shown = (_told(name, value, area=area) for value in (first, second))
            yield Difference(area=area, name=name, base=next(shown), cand=next(shown))


def _told(name: str, value: Any, *, area: str) -> Any:
    """The value, unless it may be a secret: by its name, or an environment variable nobody here knows."""
    hidden = not may_be_shown(name) if area == "environment" else looks_secret(name)
    return "set, not shown" if value is not None and hidden else value


def _flags(argv: Any) -> dict[str, str]:
    """`--key value`, `--key=value` and bare `--key` of a command line."""
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        key, mark, value = word[2:].partition("=")
        after = words[place + 1] if place + 1 < len(words) else "--"
        found[key.replace("_", "-")] = value if mark else ("set" if after.startswith("--") else after)
    return found


def _flat(value: Any) -> dict[str, Any]:
    """Scalars of an object (or of its JSON text), nested ones as text; folders are where and not how."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(value, dict):
        return {}
    return {
        str(key): item if isinstance(item, str | int | float | bool | None) else json.dumps(item, sort_keys=True)
        for key, item in value.items() if not str(key).endswith("_dir")
    }  # fmt: skip
