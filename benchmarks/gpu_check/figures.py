"""From the raw data in a folder to the figures of all checks. Reads only; the folder may come from another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzers.datasheet import called, flops_of
from benchmarks.gpu_check import recording, sensors
from benchmarks.gpu_check.expected import EXPECTED
from benchmarks.gpu_check.measure import Facts, sections
from benchmarks.gpu_check.verdict import Figure
from traces.calibration import Calibration
from traces.errors import StepscopeError
from traces.manifest import RunManifest
from traces.store import TraceStore


def figures_of(folder: Path, facts: Facts) -> list[Figure]:
    """A figure per check, as far as there is something to measure it by; else why there is none."""
    work, calibration = sections(folder), _calibration(folder)
    found = [*_calibrated(facts, calibration), *_sensed(folder, facts, work.get("load", {}))]
    found += _recorded(folder, facts, work.get("loop", {}))
    found += _served(folder, facts)
    return [*found, Figure(check="sglang.ran", value=None, note=facts.reasons.get("sglang", "not looked for"))]


def _none(prefixes: Sequence[str], reason: str, found: Sequence[Figure] = ()) -> list[Figure]:
    """The checks that begin so, without a figure, but for those found already."""
    known = {figure.check for figure in found}
    return [
        Figure(check=check, value=None, note=reason)
        for check in EXPECTED
        if check.startswith(tuple(prefixes)) and check not in known
    ]


def _failed(check: str, prefixes: Sequence[str], problem: str) -> list[Figure]:
    """A part that was to run and did not: its first check fails, and the others say so."""
    first = Figure(check=check, value=float("nan"), note=problem)
    return [first, *_none(prefixes, f"see {EXPECTED[check].what!r}", [first])]


def _calibration(folder: Path) -> Calibration | None:
    try:
        return Calibration.from_dict(json.loads((folder / "calibration.out").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _calibrated(facts: Facts, found: Calibration | None) -> list[Figure]:
    if found is None:
        problem = facts.problems.get("calibration", "its result cannot be read")
        return _failed("calibration.ran", ["calibration."], problem)
    rates = len(found.matrix) + len(found.memory)
    best = {dtype: found.peak_flops(dtype) for dtype in dict.fromkeys(rate.dtype for rate in found.matrix)}
    note = ", ".join(f"{dtype} {(rate or 0) / 1e12:.4g} TFLOP/s" for dtype, rate in best.items())
    note += f", memory {(found.peak_bandwidth or 0) / 1e9:.4g} GB/s on {found.device_name}"
    figures = [Figure(check="calibration.ran", value=float(rates), note="; ".join([note, *found.warnings]))]
    sheet = called(found.device_name)
    if not facts.on_gpu or len(sheet) != 1:
        why = "is of several entries" if sheet else "has no entry"
        no_sheet = f"{found.device_name} {why} in hardware.toml" if facts.on_gpu else _no_gpu(facts)
        figures += _none(["calibration."], no_sheet, [*figures, Figure(check="calibration.launch", value=None)])
        return [
            *figures,
            _launch(found) if facts.on_gpu else Figure(check="calibration.launch", value=None, note=no_sheet),
        ]
    for check, dtypes in (("16bit", ("bf16", "fp16")), ("fp32", ("fp32",)), ("fp8", ("fp8",)), ("int8", ("int8",))):
        figures.append(_of_sheet(f"calibration.{check}", dtypes, best, sheet[0]))
    bandwidth = found.peak_bandwidth
    figures.append(Figure(
        check="calibration.bandwidth", value=None if bandwidth is None else bandwidth / sheet[0].bandwidth,
        note=f"of {sheet[0].bandwidth / 1e9:.4g} GB/s",
    ))  # fmt: skip
    return [*figures, _launch(found)]


def _launch(found: Calibration) -> Figure:
    return Figure(check="calibration.launch", value=None if found.launch_ns is None else found.launch_ns / 1e3)


def _of_sheet(check: str, dtypes: Sequence[str], best: dict[str, float | None], sheet: Any) -> Figure:
    """The best share of the datasheet's rate among types."""
    shares = {
        dtype: (rate / peak, peak) for dtype in dtypes if (rate := best.get(dtype)) and (peak := flops_of(sheet, dtype))
    }
    if not shares:
        return Figure(check=check, value=None, note="not measured, or the device has no units for it")
    dtype = max(shares, key=lambda each: shares[each][0])
    return Figure(check=check, value=shares[dtype][0], note=f"{dtype}, of {shares[dtype][1] / 1e12:.4g} TFLOP/s")


def _no_gpu(facts: Facts) -> str:
    return facts.reasons.get("gpu", "no GPU")


def _sensed(folder: Path, facts: Facts, load: dict[str, Any]) -> list[Figure]:
    header, samples = sensors.read_samples(folder / "telemetry.jsonl")
    if "sensors" in facts.problems or not header:
        return _failed("sensors.ran", ["sensors.", "gpm."], facts.problems.get("sensors", "nothing was written"))
    found = sensors.of_sampling(header, samples)
    if "start_ns" not in load:
        why = load.get("error") or facts.problems.get("work") or "it was not reached"
        found.append(Figure(check="sensors.load", value=float("nan"), note=f"no load: {why}"))
        return found + _none(["sensors.", "gpm."], "no load to hold them against", found)
    if facts.on_gpu and header.get("source") == "nvml":
        return found + sensors.of_load(header, samples, load)
    reason = "no NVML for this device" if facts.on_gpu else _no_gpu(facts)
    return found + _none(["sensors.", "gpm."], reason, found)


def _recorded(folder: Path, facts: Facts, loop: dict[str, Any]) -> list[Figure]:
    prefixes = ["steps.", "graph.", "sums.", "sleeps.", "flops.", "roof."]
    if "steps" not in loop:
        why = loop.get("error") or facts.problems.get("work") or "it was not reached"
        return _failed("steps.ran", prefixes, f"nothing was recorded: {why}")
    try:
        store = TraceStore.open(folder / "run" / "run.duckdb")
    except StepscopeError as error:
        return _failed("steps.ran", prefixes, f"ingest: {facts.problems.get('ingest', error.message)}")
    no_graph, ran = loop.get("no_graph"), loop["steps"]
    failed_capture = no_graph is not None and facts.on_gpu
    found = recording.of_graphs(store, ran, no_graph)
    if failed_capture:
        found[0] = Figure(check="graph.launches", value=float("nan"), note=str(no_graph))
    found += _none(["graph."], "see above", found)
    row = store.query("SELECT count(ridge) AS known FROM devices WHERE run_id = ?", [store.run_id]).to_dicts()[0]
    peaked = None if row["known"] else "no peaks: neither a calibration nor a datasheet"
    found += recording.of_steps(store, ran, on_gpu=facts.on_gpu, peaked=peaked)
    found += recording.of_sums(store)
    found += recording.of_sleeps(store, loop["sleeps"])
    found += recording.of_flops(store, loop)
    unsteady = None if facts.on_gpu else "what a CPU reaches depends on caches and on who else computes: needs a GPU"
    return found + recording.of_roofs(store, loop, unsteady)


def _served(folder: Path, facts: Facts) -> list[Figure]:
    if "vllm" in facts.reasons:
        return _none(["vllm."], facts.reasons["vllm"])
    if "vllm" in facts.problems:
        return _failed("vllm.ran", ["vllm."], facts.problems["vllm"])
    try:
        manifest = RunManifest.read(folder / "vllm")
        store = TraceStore.open(folder / "vllm")
    except StepscopeError as error:
        return _failed("vllm.ran", ["vllm."], error.message)
    found = [
        Figure(
            check="vllm.ran",
            value=0.0,
            note=f"{manifest.model}, vLLM {manifest.engine_version}, {facts.seconds.get('vllm')} s",
        ),
        Figure(check="vllm.hook", value=float(len(manifest.hook_errors)), note="; ".join(manifest.hook_errors)[:200]),
    ]
    steps = store.query(
        "SELECT count(*) AS n, count(DISTINCT CASE WHEN kind IN ('prefill', 'mixed') THEN 1 WHEN kind = 'decode' THEN 2 END) AS kinds, "
        "count(*) FILTER (WHERE kind = 'decode' AND side IS NOT NULL) AS sided, "
        "count(*) FILTER (WHERE kind = 'decode' AND side = 'memory') AS memory FROM steps WHERE run_id = ? AND busy_ns > 0", [store.run_id],
    ).to_dicts()[0]  # fmt: skip
    found += [
        Figure(check="vllm.steps", value=float(steps["n"])),
        Figure(check="vllm.kinds", value=float(steps["kinds"])),
    ]
    found += recording.of_sums(store, "vllm")
    samples = store.query("SELECT count(*) AS n FROM telemetry WHERE run_id = ?", [store.run_id]).to_dicts()[0]["n"]
    found.append(Figure(check="vllm.sensors", value=float(samples)))
    if not facts.on_gpu:
        return found + _none(["vllm."], _no_gpu(facts), found)
    graphs = store.query(
        "SELECT count(*) AS n, count(*) FILTER (WHERE n_kernels > 0) AS full FROM launches WHERE run_id = ? AND is_graph", [store.run_id]
    ).to_dicts()[0]  # fmt: skip
    found.append(Figure(
        check="vllm.graphs", value=graphs["full"] / graphs["n"] if graphs["n"] else None,
        note=f"n = {graphs['n']}" if graphs["n"] else "no graph was launched",
    ))  # fmt: skip
    found.append(Figure(
        check="vllm.decode_side", value=steps["memory"] / steps["sided"] if steps["sided"] else None,
        note=f"n = {steps['sided']}" if steps["sided"] else "no decode step has a side: no costs or no peaks",
    ))  # fmt: skip
    return [*found, recording.most("vllm.most", store)]
