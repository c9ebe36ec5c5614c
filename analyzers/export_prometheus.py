"""The summary of a run in Prometheus' text format: base units (seconds, ratios), one gauge per number; unknown is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analyzers.summary import Summary

_NS = 1e-9
Labels = Mapping[str, object]
Sample = tuple[Labels, float | None]

_PARTS = (("busy", "busy_ns"), ("idle", "idle_ns"), ("unrecorded", "unrecorded_ns"))
_REQUESTS = (
    ("requests", "requests", "Requests of a pass."),
    ("requests_failed", "failed", "Requests of a pass that did not end well."),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of a pass."),
    ("cached_prompt_tokens", "cached_tokens", "Of these, reused from the prefix cache."),
    ("output_tokens", "output_tokens", "Tokens generated in a pass."),
    ("output_tokens_per_second", "output_tokens_per_s", "Output tokens of a pass by its wall time."),
)
_QUANTILES = (("0.5", "p50_ns"), ("0.9", "p90_ns"), ("0.99", "p99_ns"))


def prometheus_lines(summary: Summary) -> list[str]:
    """Every number of the summary that is known and not withheld; `stepscope_withheld` names those that are."""
    run = {"run": summary.run["run_id"]}
    lines: list[str] = []
    for name, text, samples in _metrics(summary):
        known = [(labels, value) for labels, value in samples if value is not None and math.isfinite(value)]
        if known:
            lines += [f"# HELP stepscope_{name} {text}", f"# TYPE stepscope_{name} gauge"]
            lines += [f"stepscope_{name}{_labels({**run, **labels})} {_number(value)}" for labels, value in known]
    return lines


def _metrics(summary: Summary) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    facts = {key: summary.run[key] for key in ("name", "engine", "engine_version", "model", "dtype", "device_kind")}
    yield "run_info", "What ran, in labels.", [(facts, 1.0)]
    yield "run_created_timestamp_seconds", "When the run was recorded.", [({}, _seconds(summary.run["created_ns"]))]
    yield "device_window_seconds", "Analysed window of a device: busy + idle + unrecorded.", [
        (_place(row), _seconds(row["window_end_ns"] - row["window_start_ns"])) for row in summary.devices
    ]  # fmt: skip
    for name, column in _PARTS:
        yield (
            f"device_{name}_seconds",
            f"Of the window, {name}.",
            [(_place(row), _seconds(row[column])) for row in summary.devices],
        )
    yield "steps", "Engine steps in the window.", [({"kind": row["kind"]}, row["steps"]) for row in summary.steps]
    yield (
        "step_busy_seconds",
        "Device time of steps.",
        [({"kind": row["kind"]}, _seconds(row["busy_ns"])) for row in summary.steps],
    )
    yield "step_phase_seconds", "Device time of steps by phase.", [
        ({"kind": row["kind"], "phase": phase}, _seconds(row[f"{phase}_ns"]))
        for row in summary.steps for phase in ("prefill", "decode")
    ]  # fmt: skip
    yield (
        "step_duration_seconds",
        "Duration of one step on the host, schedule to result.",
        _quantiles(summary.steps, ("kind",)),
    )
    yield "category_busy_seconds", "Device time by kernel category.", [
        ({"category": row["category"] or "not analyzed"}, _seconds(row["busy_ns"])) for row in summary.categories
    ]  # fmt: skip
    yield "latency_seconds", "Latency at the client.", _quantiles(summary.latency, ("term", "pass"))
    yield "latency_samples", "Samples behind stepscope_latency_seconds.", [
        ({key: row[key] for key in ("term", "pass")}, row["n"]) for row in summary.latency
    ]  # fmt: skip
    for name, column, text in _REQUESTS:
        yield name, text, [({"pass": row["pass"]}, row[column]) for row in summary.requests]
    for column in ("step_ratio", "throughput_ratio", "tpot_ratio"):
        text = "Cost of recording: the recorded window against the control pass."
        yield f"recording_{column}", text, [({}, (summary.overhead or {}).get(column))]
    yield (
        "withheld",
        "1 for a number that the recording cannot carry.",
        [({"number": name}, 1.0) for name in summary.withheld],
    )


def _quantiles(rows: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> list[Sample]:
    return [
        ({**{key: row[key] for key in keys}, "quantile": quantile}, _seconds(row[column]))
        for row in rows for quantile, column in _QUANTILES if column in row
    ]  # fmt: skip


def _place(row: Mapping[str, Any]) -> Labels:
    return {"rank": row["rank"], "device": row["device"]}


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns * _NS


def _labels(labels: Labels) -> str:
    """What is not known is no label."""
    given = [f'{key}="{_escaped(str(value))}"' for key, value in labels.items() if value is not None]
    return "{" + ",".join(given) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\\\r")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.9g}"
