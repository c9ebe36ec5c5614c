"""Terminal tables of `roofline`: at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from analyzers.report.text import DASH, duration, percent, shown, table
from analyzers.roofline_reading import LEAST_USED, MOST_TOLD

_WIDTH = 100
WITHHELD = f"withheld: MFU and MBU below {LEAST_USED:.0%} of time with a known cost, intensity, side and roof below {MOST_TOLD:.0%}"
_SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled(value: float | None, unit: str) -> str:
    """A large number with its decimal prefix."""
    if value is None:
        return DASH
    for limit, prefix in _SCALES:
        if abs(value) >= limit:
            return (
                f"{value / limit:.3g} {prefix}{unit}"
                if value / limit < 999.5
                else f"{value / limit:.0f} {prefix}{unit}"
            )
    return f"{value:.0f} {unit}"


def roofline_lines(data: dict[str, Any], limit: int) -> list[str]:
    """Device, coverage and sources, phases, the groups asked for, thresholds, hints."""
    lines = [_device(each) for each in data["devices"]]
    sources = ", ".join(f"{name} {percent(part)}" for name, part in data["sources"].items() if part > 0)
    lines.append(
        f"cost known for {percent(data['coverage'])} of device time" + (f" (from {sources})" if sources else "")
    )
    if data["impossible"]:
        lines.append(f"faster than the device can be: {percent(data['impossible'])} of device time")
    lines += ["", "by phase: what of the peaks is used, over device time and over wall time", *_phases(data["phases"])]
    if any(row["coverage"] < LEAST_USED for row in data["phases"]):
        lines.append(WITHHELD)
    if data["by"] != "phase":
        lines += ["", f"by {data['by']}", *_groups(data["rows"], data["by"], limit)]
        if len(data["rows"]) > limit:
            lines.append(f"  ({len(data['rows']) - limit:,} more; --limit or --json give them)")
    lines += ["", *_thresholds(data["thresholds"])]
    for hint in data["hints"]:
        lines += textwrap.wrap(f"note: {shown(hint, 600)}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _device(row: dict[str, Any]) -> str:
    peak, bandwidth = scaled(row["peak_flops"], "FLOP/s"), scaled(row["peak_bandwidth"], "B/s")
    ridge = DASH if row["ridge"] is None else f"{row['ridge']:.0f} FLOP/byte"
    return f"{shown(row['name'], 36)}: {peak}, {bandwidth}, ridge {ridge} ({row['peak_source'] or 'peaks unknown'})"


def _phases(rows: list[dict[str, Any]]) -> list[str]:
    header = ["phase", "busy", "known", "FLOP", "bytes", "FLOP/B", "side", "MFU", "MBU", "wall", "MFU wall", "MBU wall"]
    cells = [
        [
            row["phase"], duration(row["busy_ns"]), percent(row["coverage"], 0), scaled(row["flops"], ""), scaled(row["bytes"], "B"),
            _intensity(row["intensity"]), row["side"] or DASH, percent(row["mfu"]), percent(row["mbu"]),
            duration(row["wall_ns"]), percent(row["mfu_wall"]), percent(row["mbu_wall"]),
        ]
        for row in rows
    ]  # fmt: skip
    return table(header, cells, indent="")


def _intensity(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


_NAMES: dict[str, Callable[[dict[str, Any]], str]] = {
    "kernel": lambda row: shown(row["name"], 21) if row["name"] is not None else "(no name)",
    "category": lambda row: row["category"] or "(none)",
    "step": lambda row: f"{row['seq']} {row['kind'] or ''}",
}


def _groups(rows: list[dict[str, Any]], by: str, limit: int) -> list[str]:
    """Kernels have long names and no column `known`: a kernel has a cost or has none."""
    header = [by, "busy", "share", "FLOP/s", "B/s", "FLOP/B", "side", "roof", "bound", "from", "known"]
    cells = [
        [
            _NAMES[by](row), duration(row["busy_ns"]), percent(row["share"]), scaled(row["flops_per_s"], ""),
            scaled(row["bytes_per_s"], ""), _intensity(row["intensity"]), row["side"] or DASH,
            percent(row["roof_fraction"], 0), _bound(row), _source(row["sources"]), percent(row["coverage"], 0),
        ]
        for row in rows[:limit]
    ]  # fmt: skip
    shown_columns = len(header) - 1 if by == "kernel" else len(header)
    return table(header[:shown_columns], [row[:shown_columns] for row in cells], indent="")


def _bound(row: dict[str, Any]) -> str:
    return "impossible" if row["bound"] is None and row["impossible"] else row["bound"] or DASH


def _source(sources: str | None) -> str:
    """Sources by their first letters where there are several."""
    if not sources:
        return DASH
    return sources if "+" not in sources else "+".join(name[:3] for name in sources.split("+"))


def _thresholds(values: dict[str, float]) -> list[str]:
    text = (
        f"bound: the side from {percent(values['good_roof_fraction'], 0)} of the roof on; below that latency up to "
        f"{values['latency_factor']:.0f}× an empty kernel ({duration(values['empty_kernel_ns'])}), else inefficient; above "
        f"{percent(values['impossible_roof_fraction'], 0)} impossible"
    )
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
