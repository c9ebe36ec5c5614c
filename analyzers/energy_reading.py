"""What `energy` says about a run: values only. Joules, nanoseconds, watts; unknown is None, with the reason in `withheld`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analyzers.energy import attribute
from analyzers.energy_curve import as_dict
from analyzers.energy_devices import Sensed, sensed_devices, windows_of
from analyzers.energy_parts import doubtful_idle, doubtful_work, energy_parts, kernel_windows
from analyzers.energy_remedies import Baseline, downclock, packing, study
from analyzers.energy_states import execution_idle_rows, lowest_second_w, mean_power_w, state_rows
from analyzers.execution_idle import ACTIVITY_THRESHOLD, LINK_THRESHOLD_BYTES_S, PAPER_DURATIONS_S
from analyzers.hardware import find_device
from traces.errors import NothingToAnalyze, UsageProblem
from traces.health import withheld
from traces.store import TraceStore

ENERGY_VERSION = 1
J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyQuestion:
    """What is asked. `price_per_kwh` in any currency; `min_duration_s` beside the study's two; `top` rows of requests."""

    price_per_kwh: float | None = None
    min_duration_s: float | None = None
    top: int = 5
    assume_resident: bool = False
    baseline_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReport:
    """Energy of a run; see the docstring of the command `energy` for what each list holds."""

    version: int = ENERGY_VERSION
    run_id: str
    price_per_kwh: float | None
    thresholds: dict[str, float]
    devices: list[dict[str, Any]]
    energy_j: float | None
    states: list[dict[str, Any]]
    execution_idle: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    tokens: list[dict[str, Any]]
    requests: dict[str, Any] | None
    sessions: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    downclock: list[dict[str, Any]]
    packing: dict[str, Any] | None
    study: dict[str, Any]
    withheld: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read_energy(store: TraceStore, asked: EnergyQuestion) -> EnergyReport:
    """Energy and execution-idle of the store's run.

    Raises NothingToAnalyze where it has no sensors and no device time, UsageProblem for a number that is none.
    """
    for option, value in (
        ("--price", asked.price_per_kwh),
        ("--min-duration", asked.min_duration_s),
        ("--baseline-w", asked.baseline_w),
    ):
        if value is not None and not math.isfinite(value):
            raise UsageProblem(f"{option} {value} is not a number to calculate with", hint="give a plain number")
    devices = sensed_devices(store.connection, store.run_id, assume_resident=asked.assume_resident)
    reasons = withheld(store.connection, store.run_id)
    if not devices and not windows_of(store.connection, store.run_id):
        raise NothingToAnalyze(
            "the run has no sensor samples and no device time",
            hint="record with `stepscope profile`, or ingest an nvidia-smi, DCGM or Prometheus log with the trace",
        )
    found = attribute(store.connection, store.run_id, devices)
    durations = sorted({*PAPER_DURATIONS_S, *([] if asked.min_duration_s is None else [asked.min_duration_s])})
    states = [row for duration in durations for row in state_rows(devices, duration)]
    powered = [item for item in devices if item.curve is not None]
    told = found and doubtful_work(reasons) is None
    kinds = store.named("energy_kinds", "analyzers").to_dicts() if told else []
    report = EnergyReport(
        run_id=store.run_id, price_per_kwh=asked.price_per_kwh,
        thresholds={"activity": ACTIVITY_THRESHOLD, "link_bytes_s": LINK_THRESHOLD_BYTES_S},
        devices=[_device(item) for item in devices],
        energy_j=sum(item.curve.total_j for item in powered if item.curve) if powered else None,
        states=states, execution_idle=execution_idle_rows(devices, durations), parts=energy_parts(powered, found, reasons), kinds=kinds,
        tokens=_tokens(store, devices, kinds, states),
        requests=_requests(store, asked.top) if kinds else None,
        sessions=store.named("energy_top_sessions", "analyzers", top=asked.top).to_dicts() if kinds else [],
        windows=kernel_windows(store, devices, found, reasons),
        downclock=downclock(powered), packing=_packing(store, devices, asked.baseline_w) if devices else None,
        study=study(), withheld=_withheld(devices, kinds, reasons if found else {}),
    )  # fmt: skip
    _price(report)
    return report


def _device(item: Sensed) -> dict[str, Any]:
    covered = int((item.seconds["end_ns"] - item.seconds["start_ns"]).sum())
    return {
        "rank": item.rank, "device": item.device, "name": item.name, "source": item.source, "samples": item.samples,
        "start_ns": item.start_ns, "end_ns": item.end_ns, "covered_ns": covered, "period_ns": item.period_ns,
        "gaps": item.gaps, "gap_ns": item.gap_ns, "signals": list(item.signals), "basis": item.basis,
        "residence": item.residence, "power_averaged": item.averaged, **as_dict(item.curve),
        "energy_period_ns": item.power_period_ns, "on_timeline": item.window is not None,
    }  # fmt: skip


def _requests(store: TraceStore, top: int) -> dict[str, Any] | None:
    (totals,) = store.named("energy_request_totals", "analyzers").to_dicts()
    if not totals["requests"]:
        return None
    return {**totals, "top": store.named("energy_top_requests", "analyzers", top=top).to_dicts()}


def _tokens(
    store: TraceStore, devices: Sequence[Sensed], kinds: list[dict[str, Any]], states: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of what, of, tokens, energy_j, j_per_million: device work per token computed, and everything per token served."""
    rows = []
    prefill, computed = _sum(kinds, "prefill_j"), _sum(kinds, "prefill_tokens")
    rows.append(_per_token("prefill", "prompt tokens computed", computed, prefill))
    said = bool(kinds) and all(row["output_tokens"] is not None for row in kinds if row["covered"])
    output = _sum(kinds, "output_tokens" if said else "decode_tokens")
    rows.append(_per_token("decode", "output tokens" if said else "tokens decoded", output, _sum(kinds, "decode_j")))
    in_execution = [
        row for row in states if row["min_duration_s"] == 0 and row["state"] in ("active", "execution_idle")
    ]
    if in_execution and all(item.curve is not None for item in devices):
        span = {"start_ns": min(item.start_ns for item in devices), "end_ns": max(item.end_ns for item in devices)}
        (served,) = store.named("energy_tokens", "analyzers", **span).to_dicts()
        energy = _sum(in_execution, "energy_j")
        for of, key in (("prompt tokens served", "prompt_tokens"), ("output tokens served", "output_tokens")):
            row = _per_token("in-execution", of, served[key], energy)
            rows.append(row | {"requests": served["requests"], "crossing": served["crossing"]})
    return [row for row in rows if row["tokens"] and row["energy_j"]]


def _per_token(what: str, of: str, tokens: int | None, energy_j: float | None) -> dict[str, Any]:
    rate = energy_j / tokens * 1e6 if tokens and energy_j is not None else None
    return {"what": what, "of": of, "tokens": tokens, "energy_j": energy_j, "j_per_million": rate}


def _sum(rows: Sequence[dict[str, Any]], key: str) -> Any:
    values = [row[key] for row in rows if row[key] is not None]
    return sum(values) if values else None


def _packing(store: TraceStore, devices: Sequence[Sensed], given_w: float | None) -> dict[str, Any]:
    (row,) = store.named("energy_groups", "analyzers").to_dicts()
    names = {item.name for item in devices} - {None}
    name = names.pop() if len(names) == 1 else row["device_name"]
    baseline = _baseline(devices, name, given_w)
    return packing(devices, mean_power_w(devices, "execution_idle"), baseline, row["group_size"])


def _baseline(devices: Sequence[Sensed], name: str | None, given_w: float | None) -> Baseline | None:
    """What an unloaded device draws: as told, as seen unloaded, as others measured it, else the lowest second seen."""
    known = find_device(name) if name else None
    for source, power_w in (
        ("given", given_w),
        ("deep idle seconds", mean_power_w(devices, "deep_idle")),
        ("datasheet", None if known is None else known.idle_w),
        ("lowest second", lowest_second_w(devices)),
    ):
        if power_w is not None:
            return Baseline(power_w=power_w, source=source)
    return None


def _withheld(devices: Sequence[Sensed], kinds: Sequence[dict[str, Any]], health: Mapping[str, str]) -> dict[str, str]:
    """Name of a number → why it is not given and what to do."""
    reasons: dict[str, str] = {}
    if not devices:
        reasons["energy"] = reasons["states"] = (
            "the run has no sensor samples: record with `stepscope profile`, or ingest an nvidia-smi, DCGM or Prometheus "
            "log together with the trace"
        )
        return reasons
    blind = [item for item in devices if item.curve is None]
    if blind:
        reasons["energy"] = (
            f"no power sensor on {len(blind)} of {len(devices)} devices: on a GPU sample power (nvidia-smi --query-gpu="
            "power.draw, DCGM fields 155 and 156); on a CPU make /sys/class/powercap readable"
        )
    if any(item.basis is None for item in devices):
        reasons["states"] = (
            "no SM, tensor, pipe or DRAM activity was sampled: the rule has nothing to go by, and kernel-level idle is all "
            "there is (on a GPU sample GPM or DCGM fields 1002-1012; a CPU has no such signals)"
        )
    elif any((item.seconds["why"] == "residence").any() for item in devices):
        reasons["states"] = (
            "in some seconds it is not known whether a program held the device: they count as unknown; where one did, "
            "say so with --assume-resident"
        )
    doubts = {"energy of steps and phases": doubtful_work(health), "energy of idle time": doubtful_idle(health)}
    reasons |= {name: why for name, why in doubts.items() if why is not None}
    if not kinds and len(blind) < len(devices) and doubtful_work(health) is None:
        reasons["steps"] = "no recorded step ran on a device with power samples: rank, device number or clock differ"
    unresolved = sum(row["covered"] - row["resolved"] for row in kinds)
    if unresolved:
        reasons["steps.energy_j"] = (
            f"{unresolved} steps are shorter than the time between two power readings: only sums over kinds, phases and "
            "requests are given (sample faster, as far as the sensor goes)"
        )
    return reasons


def _price(report: EnergyReport) -> None:
    """Adds `cost` to every row with an energy, where a price is given."""
    if report.price_per_kwh is None:
        return
    requests = report.requests["top"] if report.requests else []
    for rows in (report.devices, report.states, report.parts, report.kinds, requests, report.sessions):
        for row in rows:
            row["cost"] = _cost(row["energy_j"], report.price_per_kwh)
    for row in report.execution_idle:
        row["cost"] = _cost(row["energy_j"], report.price_per_kwh)
    for row in report.tokens:
        row["cost_per_million"] = _cost(row["j_per_million"], report.price_per_kwh)
    for row in report.downclock:
        row["saved_cost"] = _cost(row["saved_j"], report.price_per_kwh)


def _cost(energy_j: float | None, price_per_kwh: float) -> float | None:
    return None if energy_j is None else energy_j / J_PER_KWH * price_per_kwh
