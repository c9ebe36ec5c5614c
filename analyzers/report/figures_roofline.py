"""The roofline as plotly's plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
DECADES = 5  # drawn to either side of the ridge: one sum of next to no FLOP would else squeeze all others together
_DASH = {True: "solid", False: "dot"}


_Row = dict[str, Any]
_Named = list[tuple[str, _Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Points with a FLOP/s and a FLOP/byte by what they are of: those `drawn`, between `low` and `high` FLOP/byte, and those
    `under` and `over` that."""

    low: float
    high: float
    drawn: Mapping[str, _Named]
    under: Mapping[str, _Named]
    over: Mapping[str, _Named]


def spread(data: Roofline) -> Spread:
    """What can be drawn, and what of it is too far from the ridge; without a roof, from the largest intensity."""
    points = {
        "steps": _placed(_step_names(data.steps)),
        "kernels": _placed(_named(data.by_kernel["rows"][:_KERNELS])),
        "categories": _placed(_named(data.by_category["rows"])),
        "phases": _placed(_phases(data)),
    }
    found = [row["intensity"] for rows in points.values() for _, row in rows]
    around = [roof.peak_flops / roof.peak_bandwidth for roof in data.roofs] or [max(found, default=1.0)]
    low, high = min(around) / 10**DECADES, max(around) * 10**DECADES

    def between(least: float, most: float) -> dict[str, _Named]:
        kept = {name: [item for item in rows if least <= item[1]["intensity"] < most] for name, rows in points.items()}
        return {name: rows for name, rows in kept.items() if rows}

    return Spread(
        low=low, high=high, drawn=between(low, high), under=between(0.0, low), over=between(high, math.inf)
    )  # fmt: skip


def roofline_figure(report: Report) -> Figure | None:
    """FLOP/s over FLOP/byte: roofs, kernels, categories, phases and steps; None where no point can be drawn."""
    data = report.roofline
    if data is None:
        return None
    found = spread(data)
    traces = [
        _points(name, rows, hover_sql("steps" if name == "steps" else "kernels", report.run_id))
        for name, rows in found.drawn.items()
    ]
    if not traces:
        return None
    x = [value for trace in traces for value in trace["x"]]
    traces = [*_roofs(data, min(x), max(x)), *traces]
    return {
        "data": traces,
        "layout": layout(
            height=460,
            xaxis=axis("arithmetic intensity, FLOP/byte", log=True),
            yaxis=_rate_axis([value for trace in traces for value in trace["y"]]),
            hovermode="closest",
            legend={"orientation": "h", "y": -0.2},
        ),
    }


def _rate_axis(values: Sequence[float]) -> dict[str, Any]:
    """Powers of ten by their prefix, which plotly itself gives up from 10^15 on; some to spare for zooming out."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    marks = [10.0**power for power in range(max(low - 2, 0), max(high, 0) + 3)]
    return axis("FLOP/s", log=True, tickvals=marks, ticktext=[scaled(mark, "").strip() for mark in marks])


def _placed(rows: _Named) -> _Named:
    """Those that have a place on logarithmic axes."""
    return [(name, row) for name, row in rows if (row.get("intensity") or 0) > 0 and (row.get("flops_per_s") or 0) > 0]


def _step_names(rows: Iterable[_Row]) -> _Named:
    return [
        (f"{row['kind']} step {row['seq']}" + (f" and {row['n'] - 1} like it" if row["n"] > 1 else ""), row)
        for row in rows
    ]


def _named(rows: Iterable[_Row]) -> _Named:
    return [(str(row["name"] if "name" in row else row["category"]), row) for row in rows]


def _phases(data: Roofline) -> list[tuple[str, _Row]]:
    """Phases with their rate over the time whose cost is known, as that of categories and steps is."""
    return [
        (row["phase"], {**row, "flops_per_s": row["flops"] / row["costed_ns"] * 1e9})
        for row in data.by_category["phases"]
        if row["flops"] and row["costed_ns"] and row["phase"] != "all"
    ]


_MARK: dict[str, dict[str, Any]] = {
    "steps": {"symbol": "circle-open", "color": GREY, "size": 7},
    "kernels": {"symbol": "circle", "color": PHASE["prefill"], "size": 9},
    "categories": {"symbol": "diamond", "color": VERMILION, "size": 13},
    "phases": {"symbol": "star", "color": GREEN, "size": 17},
}


def _points(name: str, rows: _Named, sql: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} (n = {len(rows):,})",
        "x": [row["intensity"] for _, row in rows],
        "y": [row["flops_per_s"] for _, row in rows],
        "text": [_point_text(label, row) for label, row in rows],
        "hovertemplate": "%{text}" + sql,
        "marker": {**_MARK[name], "line": {"width": 1}},
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
