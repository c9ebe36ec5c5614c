"""The terminal form of `energy`."""

from __future__ import annotations

from typing import Any

from analyzers.energy_reading import EnergyReport
from analyzers.report.energy_parts_text import (
    downclock_lines,
    joules,
    kinds_lines,
    money,
    packing_lines,
    parts_lines,
    priced,
    request_lines,
    session_lines,
    tokens_lines,
    watts,
    wrapped,
)  # fmt: skip
from analyzers.report.text import DASH, count, duration, percent, shown, table

_STATE = {
    "active": "active", "execution_idle": "execution-idle", "deep_idle": "deep idle (no program)", "unknown": "unknown",
    "unsampled": "between samples",
}  # fmt: skip
_SOURCE = {
    "counter": "energy counter", "power": "power", "power_instant": "momentary power", None: "none",
}  # fmt: skip
_NEAR = 0.02  # shares that differ by less are alike


def energy_lines(report: EnergyReport) -> list[str]:
    """Energy of a run as lines of at most 100 columns."""
    sections = (
        _title(report), _devices(report), _states(report), _execution_idle(report), _windows(report), parts_lines(report),
        kinds_lines(report), tokens_lines(report), request_lines(report), session_lines(report), downclock_lines(report),
        packing_lines(report), _withheld(report),
    )  # fmt: skip
    lines: list[str] = []
    for section in sections:
        lines += [*section, ""] if section else []
    return lines[:-1]


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:g} s" if value < 100 else f"{value:.0f} s"


def _title(report: EnergyReport) -> list[str]:
    n = len(report.devices)
    text = f"energy of {shown(report.run_id, 40)}: {joules(report.energy_j)}"
    if report.price_per_kwh is not None:
        text += f", which costs {money(_total_cost(report))} at {report.price_per_kwh:g} per kWh"
    powered = sum(1 for row in report.devices if row["energy_j"] is not None)
    return [text + (f" ({powered} of {n} devices have a power sensor)" if n and powered < n else "")]


def _total_cost(report: EnergyReport) -> float | None:
    costs = [row["cost"] for row in report.devices if row["cost"] is not None]
    return sum(costs) if costs else None


def _devices(report: EnergyReport) -> list[str]:
    if not report.devices:
        return []
    rows = [
        [
            _place(row), shown(row["name"], 26), count(row["samples"]), duration(row["period_ns"]), duration(row["covered_ns"]),
            _SOURCE[row["energy_source"]], joules(row["energy_j"]),
        ]
        for row in report.devices
    ]  # fmt: skip
    lines = ["sensors", *table(["", "device", "samples", "every", "covered", "energy from", "energy"], rows, left=2)]
    for row in report.devices:
        lines += [line for note in _notes(row) for line in wrapped(f"{_place(row)}: {note}")]
    return lines


def _notes(row: dict[str, Any]) -> list[str]:
    notes = []
    if row["gaps"]:
        notes.append(f"{row['gaps']:,} gaps in the samples, {duration(row['gap_ns'])} together, count nowhere")
    if row["period_ns"] is not None and row["period_ns"] > 1_500_000_000:
        notes.append("sampled slower than once a second, which the states are defined by: short ones are not seen")
    if row["basis"] == "utilization":
        notes.append(
            "states from utilization, in place of SM activity: it overstates activity, so execution-idle is a least"
        )
    if row["residence"] == "timeline":
        notes.append(
            "a program is taken to hold the device from its first to its last recorded work; the sensor does not say"
        )
    if row["residence"] == "assumed":
        notes.append("a program is taken to hold the device throughout, as you said")
    if row["power_averaged"]:
        notes.append("the driver averages its power over up to a second: energy of steps and gaps is smoothed by that")
    if not row["on_timeline"]:
        notes.append("no device of the kernel timeline: its energy has states, but no phases")
    return notes


def _place(row: dict[str, Any]) -> str:
    rank = "" if row["rank"] is None else f"rank {row['rank']} "
    return rank + ("device ?" if row["device"] is None else f"device {row['device']}")


def _states(report: EnergyReport) -> list[str]:
    chosen = [row for row in report.states if row["min_duration_s"] == 0 and row["time_ns"]]
    if not chosen:
        return []
    rows = [
        [
            _STATE[row["state"]], duration(row["time_ns"]), percent(row["time_share"]), joules(row["energy_j"]),
            percent(row["energy_share"]), watts(row["power_w"]),
        ]
        for row in chosen
    ]  # fmt: skip
    header = ["state", "time", "of time", "energy", "of energy", "mean power"]
    priced(report, header, rows, [row.get("cost") for row in chosen])
    return ["by state, second by second (every second of execution-idle counts)", *table(header, rows)]


def _execution_idle(report: EnergyReport) -> list[str]:
    if not report.execution_idle:
        return []
    study = report.study
    rows = [
        [
            "this run", _least(row["min_duration_s"]), percent(row["time_share"]), percent(row["energy_share"]), count(row["n"]),
            *(_seconds(row[key]) for key in ("p50_s", "p90_s", "p99_s")), duration(row["time_ns"]), joules(row["energy_j"]),
        ]
        for row in report.execution_idle
    ]  # fmt: skip
    cluster = study["cluster"]
    lengths = [_seconds(cluster[f"interval_{key}_s"]) for key in ("p50", "p90", "p99")]
    rows.append(
        [
            "study: cluster",
            _least(cluster["min_duration_s"]),
            *_shares(cluster),
            count(cluster["intervals"]),
            *lengths,
            DASH,
            DASH,
        ]
    )
    rows += [
        [f"study: {row['name']}", _least(study["replays"]["min_duration_s"]), *_shares(row), *[DASH] * 6]
        for row in study["replays"]["rows"]
    ]
    header = ["execution-idle", "at least", "of time", "of energy", "n", "p50", "p90", "p99", "time", "energy"]
    note = (
        f"Shares of execution-idle + active. The study's figures are {study['source']}: cluster, {cluster['setting']}; "
        f"replays, {study['replays']['setting']}. They hold for that only."
    )
    return [*table(header, rows, indent=""), *wrapped(note)]


def _least(seconds: float) -> str:
    return "none" if seconds == 0 else f"{seconds:g} s"


def _shares(row: dict[str, Any]) -> list[str]:
    return [percent(row["time_share"]), percent(row["energy_share"])]


def _windows(report: EnergyReport) -> list[str]:
    if not report.windows:
        return []
    rows = [
        [
            _place(row), duration(row["window_ns"]), "withheld" if row["why"] else percent(row["kernel_idle_share"]),
            percent(row["execution_idle_share"]), percent(row["execution_idle_share_5s"]), percent(row["unknown_share"]),
            percent(row["covered_share"]),
        ]
        for row in report.windows
    ]  # fmt: skip
    header = ["recorded window", "", "idle by kernels", "execution-idle", "of 5 s", "unknown", "sampled"]
    whys = {_why_differ(row) for row in report.windows}
    return [*table(header, rows, indent=""), *(line for why in sorted(whys) for line in wrapped(why))]


def _why_differ(row: dict[str, Any]) -> str:
    kernels, sensors = row["kernel_idle_share"], row["execution_idle_share"]
    rule = "Idle by kernels is every nanosecond without an activity; execution-idle is whole seconds with every signal low."
    if row["why"]:
        return f"Idle by kernels is withheld: {shown(row['why'], 300)}"
    if kernels is None or sensors is None:
        return rule + " Only one of them is known here."
    if kernels > sensors + _NEAR:
        return (
            rule + " Here most idle time comes in pieces of less than a second: between kernels, not between requests."
        )
    if sensors > kernels + _NEAR:
        return (
            rule
            + " Here kernels ran in seconds that count as execution-idle: too few or too small to reach 5 % activity."
        )
    return rule + " Here they agree: the device was idle for seconds at a time, or hardly at all."


def _withheld(report: EnergyReport) -> list[str]:
    return [
        line for name, why in report.withheld.items() for line in wrapped(f"not given: {name}: {shown(why, 600)}", "")
    ]
