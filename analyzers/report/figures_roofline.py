"""The roofline as plotly's plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analyzers.report.figures import axis, layout
from analyzers.report.page_html import plain
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREEN, GREY, PHASE, VERMILION
from analyzers.report.roofline_text import scaled
from analyzers.report.text import duration, percent
from analyzers.report_model import Report, Roofline

Figure = dict[str, Any]
_KERNELS = 150
_DASH = {True: "solid", False: "dot"}


def roofline_figure(report: Report) -> Figure | None:
    """FLOP/s over FLOP/byte: roofs, kernels, categories, phases and steps; None where no cost is known."""
    data = report.roofline
    if data is None:
        return None
    sql, steps_sql = hover_sql("kernels", report.run_id), hover_sql("steps", report.run_id)
    points = [
        _points(
            "steps",
            [
                (f"{row['kind']} step {row['seq']}" + (f" and {row['n'] - 1} like it" if row["n"] > 1 else ""), row)
                for row in data.steps
            ],
            steps_sql,
            symbol="circle-open",
            color=GREY,
            size=7,
        ),
        _points(
            "kernels", _named(data.by_kernel["rows"][:_KERNELS]), sql, symbol="circle", color=PHASE["prefill"], size=9
        ),
        _points("categories", _named(data.by_category["rows"]), sql, symbol="diamond", color=VERMILION, size=13),
        _points("phases", _phases(data), sql, symbol="star", color=GREEN, size=17),
    ]
    traces = [trace for trace in points if trace["x"]]
    if not traces:
        return None
    x = [value for trace in traces for value in trace["x"]]
    traces = [*_roofs(data, min(x), max(x)), *traces]
    return {
        "data": traces,
        "layout": layout(
            height=460,
            xaxis=axis("arithmetic intensity, FLOP/byte", log=True),
            yaxis=axis("FLOP/s", log=True, si=True),
            hovermode="closest",
            legend={"orientation": "h", "y": -0.2},
        ),
    }


_Row = dict[str, Any]


def _named(rows: Iterable[_Row]) -> list[tuple[str, _Row]]:
    return [(str(row["name"] if "name" in row else row["category"]), row) for row in rows]


def _phases(data: Roofline) -> list[tuple[str, _Row]]:
    """Phases with their rate over device time."""
    return [
        (row["phase"], {**row, "flops_per_s": row["flops"] / row["busy_ns"] * 1e9})
        for row in data.by_category["phases"]
        if row["flops"] and row["busy_ns"] and row["phase"] != "all"
    ]


def _points(
    name: str, rows: Sequence[tuple[str, _Row]], sql: str, *, symbol: str, color: str, size: int
) -> dict[str, Any]:
    known = [
        (label, row) for label, row in rows if (row.get("intensity") or 0) > 0 and (row.get("flops_per_s") or 0) > 0
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} (n = {len(known):,})",
        "x": [row["intensity"] for _, row in known],
        "y": [row["flops_per_s"] for _, row in known],
        "text": [_point_text(label, row) for label, row in known],
        "hovertemplate": "%{text}" + sql,
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 1}},
    }


def _point_text(label: str, row: _Row) -> str:
    lines = [f"<b>{plain(label, 80)}</b>", f"{row['intensity']:.3g} FLOP/byte, {scaled(row['flops_per_s'], 'FLOP/s')}"]
    if row.get("roof_fraction") is not None:
        lines.append(f"{percent(row['roof_fraction'], 0)} of the roof")
    if row.get("bound"):
        lines.append(f"bound: {plain(row['bound'])}")
    if row.get("busy_ns"):
        lines.append(f"{duration(row['busy_ns'])} busy" + (f", n = {row['n']:,}" if row.get("n") else ""))
    return "<br>".join(lines)


def _roofs(data: Roofline, low: float, high: float) -> list[dict[str, Any]]:
    """A line per roof from below the least intensity to above the largest, with its ridge."""
    traces = []
    for roof in data.roofs:
        ridge = roof.peak_flops / roof.peak_bandwidth
        x = sorted([min(low, ridge) / 3, ridge, max(high, ridge) * 3])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": x,
                "y": [min(roof.peak_flops, value * roof.peak_bandwidth) for value in x],
                "name": f"roof ({roof.source}{'' if roof.used else ', for comparison'})",
                "line": {"dash": _DASH[roof.used], "width": 2, "color": GREY},
                "marker": {"symbol": "triangle-down", "size": [0, 10, 0], "color": GREY},
                "hovertemplate": f"{plain(roof.device or 'device')}: {scaled(roof.peak_flops, 'FLOP/s')}, "
                f"{scaled(roof.peak_bandwidth, 'B/s')}"
                f"<br>ridge {ridge:.3g} FLOP/byte ({roof.source})<extra></extra>",
            }
        )
    return traces
