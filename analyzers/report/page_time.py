"""Sections on device time: the budget, the roofline and idleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.report.figures_roofline import DECADES, roofline_figure, spread
from analyzers.report.page_bar import budget_bar, fill_of, part_name, swatch
from analyzers.report.page_html import (
    Cell,
    bullets,
    figure,
    figure_number,
    ns,
    number,
    paragraph,
    part,
    row_head,
    section,
    table,
    text,
    words,
)
from analyzers.report.page_sql import sql_of
from analyzers.report.roofline_text import scaled
from analyzers.report.text import DASH, count, duration, percent, share, shown
from analyzers.report_budget import Budget
from analyzers.report_model import Report, Roofline, Roofs

Rows = list[list[Cell | str]]
_MOST_CATEGORIES = 40
_MOST_NAMED = 3


def budget_section(report: Report) -> str:
    """The bar and its parts; the window of every device as `summary` has it."""
    body = ""
    if report.budget is not None:
        budget, sql = report.budget, sql_of("budget", report.run_id)
        rows: Rows = [
            [
                row_head(text(part_name(each)), swatch(fill_of(each))),
                ns(each.ns),
                part(each.share),
                number(each.n),
            ]
            for each in budget.parts
        ]
        rows.append(['<th scope="row">window</th>', ns(budget.window_ns), figure_number(1.0, "100.0 %"), words("")])
        body = budget_bar(budget, sql) + _bar_notes(budget)
        body += table(
            "parts of the window (they sum to it); n: activities of busy parts, pieces of idle ones",
            ["part", "time", "share", "n"],
            rows,
            sql=f"{sql}; {sql_of('idle', report.run_id)}",
            identity="budget-parts",
        )
        notes = [f"{part_name(each)}: {each.why}" for each in budget.parts if each.why is not None]
        body += bullets(list(dict.fromkeys(notes)))
    return section("budget", "Time budget", body + _devices(report), why=report.missing.get("budget"))


def _bar_notes(budget: Budget) -> str:
    """Whom the hues of idle time mean, and that printed shares may miss the whole."""
    notes = []
    if any(each.group == "idle" for each in budget.parts):
        notes.append(
            "Idle time has a pattern per cause, and a hue per who has to do less: orange the host, green the device, blue "
            "the load, grey where that is not known."
        )
    printed = sum(each.tenths for each in budget.parts)
    if printed != 1000:
        notes.append(f"Shares are rounded one by one: as printed they add up to {printed / 10:.1f} %.")
    return paragraph(" ".join(notes), "sub") if notes else ""


def _devices(report: Report) -> str:
    rows: Rows = []
    for i, item in enumerate(report.summary.devices):
        window = item["window_end_ns"] - item["window_start_ns"]
        cells: list[Cell | str] = [
            words(f"rank {item['rank']} device {item['device']}"),
            words(item["name"] or DASH, 50),
            ns(window),
        ]
        for name in ("busy_ns", "idle_ns", "unrecorded_ns"):
            value = item[name]
            label = "withheld" if value is None else f"{duration(value)} ({percent(share(value, window))})"
            cells.append(figure_number(value, label, f"devices.{i}.{name}"))
        rows.append(cells)
    return table(
        "time of the devices: window = busy + idle + unrecorded",
        ["", "device", "window", "busy", "idle", "unrecorded"],
        rows,
        sql=sql_of("devices", report.run_id),
    )


def roofline_section(report: Report) -> str:
    """FLOP/s against FLOP/byte, with what the roofs are and how much of the time they cover."""
    data = report.roofline
    if data is None:
        return section("roofline", "Roofline", "", why=report.missing.get("roofline"))
    main = data.by_category
    phases = _roofline_phases(main)
    groups = _roofline_groups(main)
    sql = sql_of("kernels", report.run_id)
    lead = f"Costs are known for {percent(main['coverage'])} of busy time."
    if roofline_figure(report) is not None:
        lead += (
            " A point's height is its FLOP/s, its place to the right its FLOP per byte; what lies far below the roof is "
            "not limited by it."
        )
        chart = figure("roofline", "roofline: FLOP/s over arithmetic intensity") + _outside(data)
    else:
        chart = _outside(data) or paragraph(f"No point can be drawn: {_why_no_point(main)}.", "missing")
    body = (
        paragraph(lead)
        + bullets(_roofs(data.roofs))
        + chart
        + table(
            "by phase: share of the peaks used, over device time (MFU, MBU) and wall time",
            ["phase", "busy", "cost known", "FLOP", "bytes", "FLOP/byte", "side", "MFU", "MBU", "MFU wall", "MBU wall"],
            phases,
            sql=sql_of("kernels_phases", report.run_id),
        )
        + table(
            "by category",
            [
                "category",
                "n",
                "busy",
                "share",
                "FLOP/s",
                "bytes/s",
                "FLOP/byte",
                "side",
                "bound",
                "of the roof",
                "cost known",
            ],
            groups,
            sql=sql,
        )
    )
    return section("roofline", "Roofline", body + bullets([f"Note: {hint}." for hint in main["hints"]]))


def _outside(data: Roofline) -> str:
    """Says which points are too far from the ridge to be drawn with the others; nothing where there are none."""
    found = spread(data)
    sides = [
        f"{_which(points)} {side} {limit:.2g} FLOP/byte"
        for points, side, limit in ((found.under, "below", found.low), (found.over, "above", found.high))
        if points
    ]
    if not sides:
        return ""
    return paragraph(
        f"Not drawn: {' and '.join(sides)}, {DECADES} powers of ten from {'the ridge' if data.roofs else 'the largest'}; "
        "`stepscope roofline --by category`, `kernel` or `step` has them."
    )


def _which(points: Mapping[str, Sequence[tuple[str, Any]]]) -> str:
    """Their names where they are few."""
    singular = {"steps": "step", "kernels": "kernel", "categories": "category", "phases": "phase"}
    words = []
    for name, rows in points.items():
        names = f" ({', '.join(shown(label, 60) for label, _ in rows)})" if len(rows) <= _MOST_NAMED else ""
        words.append(f"{len(rows):,} {singular[name] if len(rows) == 1 else name}{names}")
    return ", ".join(words)


def _why_no_point(main: Any) -> str:
    """A point needs FLOP and bytes."""
    if not main["coverage"]:
        return "no cost is known"
    known = [str(row["category"] or "(none)") for row in main["rows"] if row["flops"] is not None]
    return f"what the costs are known of ({', '.join(known)}) moves bytes and computes nothing, and a point needs both"


def _roofs(roofs: list[Roofs]) -> list[str]:
    return [
        f"{roof.source} roof of {roof.device or 'the device'}: {scaled(roof.peak_flops, 'FLOP/s')}, {scaled(roof.peak_bandwidth, 'B/s')}, "
        f"ridge {roof.peak_flops / roof.peak_bandwidth:.3g} FLOP/byte"
        + ("; bounds come from this one" if roof.used else "; for comparison")
        for roof in roofs
    ]


def _roofline_groups(main: Any) -> Rows:
    return [
        [
            words(row["category"] or "(none)"),
            number(row["n"]),
            ns(row["busy_ns"]),
            part(row["share"]),
            figure_number(row["flops_per_s"], scaled(row["flops_per_s"], "FLOP/s")),
            figure_number(row["bytes_per_s"], scaled(row["bytes_per_s"], "B/s")),
            figure_number(row["intensity"], _ratio(row["intensity"])),
            words(row["side"] or DASH),
            words(row["bound"] or ("impossible" if row["impossible"] else DASH)),
            part(row["roof_fraction"], digits=0),
            part(row["coverage"], digits=0),
        ]
        for row in main["rows"][:_MOST_CATEGORIES]
    ]


def _roofline_phases(main: Any) -> Rows:
    return [
        [
            words(row["phase"]),
            ns(row["busy_ns"]),
            part(row["coverage"], digits=0),
            figure_number(row["flops"], scaled(row["flops"], "FLOP")),
            figure_number(row["bytes"], scaled(row["bytes"], "B")),
            figure_number(row["intensity"], _ratio(row["intensity"])),
            words(row["side"] or DASH),
            part(row["mfu"]),
            part(row["mbu"]),
            part(row["mfu_wall"]),
            part(row["mbu_wall"]),
        ]
        for row in main["phases"]
    ]


def idle_section(report: Report) -> str:
    """Idle time by cause and size, what would hide it, the longest pieces."""
    data = report.idle
    if data is None or not data.groups:
        why = report.missing.get("idle") or "no idle time was found between the recorded activities"
        return section("idle", "Idle time", "", why=why)
    sql = sql_of("idle", report.run_id)
    notes = [f"Shares are withheld: {why}" for why in dict.fromkeys(data.withheld.values())]
    causes = _idle_causes(data)
    whole = sum(row["ns"] for row in data.sizes)
    sizes = _idle_sizes(data, whole)
    worst = _idle_worst(data)
    body = bullets(notes) + figure("idle", "idle time by cause and by length of a piece")
    body += table(
        "idle time by cause",
        ["cause", "pieces (n)", "time", "of window", "p50", "p99", "longest", "what would hide it"],
        causes,
        sql=sql,
    )
    body += table(
        "idle time by length", ["length", "pieces (n)", "time", "share"], sizes, sql=sql_of("idle_sizes", report.run_id)
    )
    body += table(
        "the longest pieces, at their time in the window",
        ["length", "cause", "at", "after", "before", "evidence"],
        worst,
        sql=sql_of("gaps", report.run_id),
    )
    return section("idle", "Idle time", body)


def _idle_worst(data: Any) -> Rows:
    return [
        [
            ns(row["dur_ns"]),
            words(row["cause"] or "not analyzed"),
            ns(row["start_ns"]),
            words(row["before"] or "an end of the window", 60),
            words(row["after"] or "an end of the window", 60),
            words(row["detail"] or "", 160),
        ]
        for row in data.worst
    ]


def _idle_sizes(data: Any, whole: Any) -> Rows:
    return [
        [
            words(f"{duration(row['low_ns'])} to {duration(row['high_ns'])}" if row["low_ns"] else "below 1 µs"),
            number(row["pieces"]),
            ns(row["ns"]),
            part(share(row["ns"], whole)),
        ]
        for row in data.sizes
    ]


def _idle_causes(data: Any) -> Rows:
    return [
        [
            words(row["name"]),
            number(row["pieces"]),
            ns(row["ns"]),
            part(row["share"]),
            ns(row["p50_ns"]),
            ns(row["p99_ns"]),
            ns(row["max_ns"]),
            words(_remedy(data.hiding, row["name"]), 200),
        ]
        for row in data.groups
    ]


def _remedy(hiding: list[dict[str, Any]], cause: str) -> str:
    return next((str(row["remedy"]) for row in hiding if row["cause"] == cause), "")


def _ratio(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}" if value < 1000 else count(value)
