"""Terminal form of `idle`."""

from __future__ import annotations

from typing import Any

from analyzers.idle_reading import IdleReport
from analyzers.report.text import count, duration, percent, share, shown, table

_WHO = {
    "host": "host work to remove or overlap",
    "device": "on the device",
    "load": "no work for it",
    "unknown": "not known",
}
WIDTH = 98


def idle_lines(report: IdleReport) -> list[str]:
    """Totals, groups, sizes, what hides them and the worst pieces, at most 100 columns."""
    lines = [*_devices(report), "", *_groups(report)]
    if report.by != "size" and report.sizes:
        lines += ["", *_sizes(report.sizes)]
    if report.hiding:
        lines += ["", *_hiding(report)]
    if report.worst:
        lines += ["", *_worst(report)]
    return lines


def _devices(report: IdleReport) -> list[str]:
    rows = [
        [
            f"rank {row['rank']} device {row['device']}", duration(row["window_ns"]), _part(row["busy_ns"], row["window_ns"]),
            _part(row["idle_ns"], row["window_ns"]), _part(row["unrecorded_ns"], row["window_ns"]),
        ]
        for row in report.devices
    ]  # fmt: skip
    lines = ["window = busy + idle + unrecorded", *table(["", "window", "busy", "idle", "unrecorded"], rows)]
    if report.withheld:
        lines.append("  shares are withheld, the recording cannot carry them (`stepscope health` says how to record):")
        for why in dict.fromkeys(report.withheld.values()):
            lines += _wrapped(shown(why, 600), indent="    ")
    return lines


def _part(ns: int | None, window_ns: int) -> str:
    return "withheld" if ns is None else f"{duration(ns)} ({percent(share(ns, window_ns))})"


def _groups(report: IdleReport) -> list[str]:
    least = f", pieces of {duration(report.min_ns)} and longer" if report.min_ns else ""
    if not report.groups:
        return [f"no idle time{least}"]
    if report.by == "size":
        return [f"idle by size{least}", *_sizes(report.groups)[1:]]
    rows = [
        [
            row["name"], count(row["pieces"]), duration(row["ns"]), percent(row["share"]), duration(row["p50_ns"]),
            duration(row["p99_ns"]), duration(row["max_ns"]),
        ]
        for row in report.groups
    ]  # fmt: skip
    title = {"cause": "cause", "step-kind": "step kind"}[report.by]
    return [f"idle by {title}{least}", *table([title, "pieces", "time", "of window", "p50", "p99", "longest"], rows)]


def _sizes(sizes: list[dict[str, Any]]) -> list[str]:
    whole = sum(row["ns"] for row in sizes)
    rows = [
        [
            f"{_edge(row['low_ns'])} to {_edge(row['high_ns'])}" if row["low_ns"] else "below 1 µs", count(row["pieces"]),
            duration(row["ns"]), percent(share(row["ns"], whole)),
        ]
        for row in sizes
    ]  # fmt: skip
    return ["sizes", *table(["length", "pieces", "time", "of these"], rows)]


def _edge(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            return f"{ns // size:,} {unit}"
    return f"{ns} ns"


def _hiding(report: IdleReport) -> list[str]:
    lines = ["what would hide it"]
    for row in report.hiding:
        per_step = f", {duration(row['per_step_ns'])} per step" if row["per_step_ns"] is not None else ""
        lines.append(f"  {row['cause']}: {duration(row['ns'])}{per_step}, {_WHO[row['who']]}")
        lines += _wrapped(row["remedy"], indent="    ")
        for item in row["evidence"]:
            lead = f"    {duration(item['ns']):>9}  {count(item['pieces']):>7} ×  "
            lines.append(lead + shown(item["what"] or "no evidence", WIDTH - len(lead)))
    return lines


def _worst(report: IdleReport) -> list[str]:
    lines = ["longest pieces, at their time in the window"]
    several = len(report.devices) > 1
    for row in report.worst:
        where = f"rank {row['rank']} device {row['device']}, " if several else ""
        steps = _steps(row)
        lines.append(
            f"  {duration(row['dur_ns'])}  {row['cause'] or 'not analyzed'}  ({where}at {duration(row['start_ns'])}{steps})"
        )
        lines.append(f"    between {_named(row['before'])} and {_named(row['after'])}")
        if row["detail"]:
            lines += _wrapped(shown(row["detail"], 400), indent="    ")
    return lines


def _steps(row: dict[str, Any]) -> str:
    before, after = row["seq_before"], row["seq_after"]
    if after is not None and before == after:
        return f", in step {after} ({row['kind']})"
    if before is None and after is None:
        return ""
    return f", step {'–' if before is None else before} to {'–' if after is None else after}"


def _named(name: str | None) -> str:
    return "an end of the window" if name is None else shown(name, 38)


def _wrapped(text: str, *, indent: str) -> list[str]:
    """Words in lines of at most WIDTH columns; a longer word is cut."""
    lines, room = [""], WIDTH - len(indent)
    for word in text.split(" "):
        piece = word if len(word) <= room else word[: room - 1] + "…"
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > room:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}" if lines[-1] else piece
    return [indent + line for line in lines]
