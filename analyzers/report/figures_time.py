"""Figures of what time and energy divide into: phases, causes of idleness, joules."""

from __future__ import annotations

from typing import Any

from analyzers.energy_reading import EnergyReport
from analyzers.idle_reading import HIDING, IdleReport
from analyzers.report.energy_parts_text import joules
from analyzers.report.figures import axis, filled, layout, pattern
from analyzers.report.page_html import plain
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREEN, GREY, PHASE, SKY, VERMILION, Fill, cause_fill
from analyzers.report.text import count, duration, percent

Figure = dict[str, Any]
MOST_TURNS, MOST_WATERFALL = 200, 120
_PASSES = ("control", "profiled", None)  # recording slows, so the pass without it is drawn


def phases_figure(data: dict[str, Any], run_id: str) -> Figure | None:
    """Device time of the phases by step kind, and the intervals between tokens with and without a prefill beside."""
    kinds = [row for row in data["kinds"] if row["busy_ns"]]
    if not kinds:
        return None
    traces: list[dict[str, Any]] = []
    for phase, shape in (("prefill", ""), ("decode", "/"), ("other", "x")):
        traces.append(
            {
                "type": "bar",
                "name": f"{phase} time",
                "x": [row["kind"] for row in kinds],
                "y": [_ms(row[f"{phase}_ns"]) for row in kinds],
                "marker": {"color": PHASE[phase], "pattern": pattern(shape)},
                "text": [f"n = {row['steps']:,} step{'' if row['steps'] == 1 else 's'}" for row in kinds],
                "textposition": "none",
                "hovertemplate": f"{phase} in %{{x}} steps: %{{y:.4~g}} ms<br>%{{text}}"
                + hover_sql("step_kinds", run_id),
            }
        )
    traces += [*_per_token(kinds, run_id), *_intervals(data["itl"], run_id)]
    return {
        "data": traces,
        "layout": layout(
            height=380,
            barmode="stack",
            xaxis={"domain": [0, 0.27], "title": {"text": "step kind"}},
            xaxis2={"domain": [0.38, 0.62], "anchor": "y2", "title": {"text": "step kind"}, "type": "category"},
            xaxis3={"domain": [0.74, 1], "anchor": "y3", "title": {"text": "percentile of ITL"}, "type": "category"},
            yaxis=axis("device time, ms"),
            yaxis2=axis("µs per token", anchor="x2", rangemode="tozero"),
            yaxis3=axis("ITL, ms", anchor="x3", rangemode="tozero"),
            legend={"orientation": "h", "y": -0.25, "traceorder": "normal"},
        ),
    }


def _per_token(kinds: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for phase, symbol in (("prefill", "circle"), ("decode", "square")):
        key = f"{phase}_ns_per_token"
        rows = [row for row in kinds if row[key]]
        if not rows:  # an axis of categories without any cannot be drawn
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"per {phase} token",
                "x": [row["kind"] for row in rows],
                "y": [row[key] / 1e3 for row in rows],
                "xaxis": "x2",
                "yaxis": "y2",
                "marker": {"color": PHASE[phase], "symbol": symbol, "size": 13, "line": {"width": 1}},
                "text": [count(row[f"{phase}_tokens"]) for row in rows],
                "hovertemplate": f"%{{y:.4~g}} µs of device time per {phase} token<br>n = %{{text}} tokens"
                + hover_sql("step_kinds", run_id),
            }
        )
    return traces


def _intervals(itl: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    chosen = next((name for name in _PASSES if any(row["pass"] == name for row in itl)), None)
    for beside, symbol in ((False, "circle"), (True, "triangle-up")):
        row = next((row for row in itl if bool(row["with_prefill"]) is beside and row["pass"] == chosen), None)
        if row is None:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"ITL {'with' if beside else 'without'} prefill",
                "x": ["p50", "p90", "p99"],
                "y": [_ms(row[f"p{at}_ns"]) for at in (50, 90, 99)],
                "xaxis": "x3",
                "yaxis": "y3",
                "line": {"color": VERMILION if beside else GREEN, "dash": "dash" if beside else "solid"},
                "marker": {"symbol": symbol, "size": 11},
                "hovertemplate": f"%{{x}}: %{{y:.4~g}} ms between tokens<br>n = {row['n']:,}, {plain(row['pass'] or 'all')} pass"
                + hover_sql("ledger", run_id),
            }
        )
    return traces


def idle_figure(report: IdleReport, run_id: str) -> Figure | None:
    """Idle time by cause, drawn as the budget's bar draws it, and by the length of a piece."""
    if not report.groups:
        return None
    rows = list(reversed(report.groups))
    data = [
        *(_cause(row, run_id) for row in rows),
        {
            "type": "bar",
            "name": "by length",
            "x": [f"from {duration(row['low_ns'])}" if row["low_ns"] else "below 1 µs" for row in report.sizes],
            "y": [_ms(row["ns"]) for row in report.sizes],
            "marker": {"color": SKY, "pattern": pattern("/")},
            "customdata": [row["pieces"] for row in report.sizes],
            "xaxis": "x2",
            "yaxis": "y2",
            "hovertemplate": "pieces %{x}: %{y:.4~g} ms, n = %{customdata}" + hover_sql("gaps", run_id),
        },
    ]
    return {
        "data": data,
        "layout": layout(
            height=max(300, 60 + 28 * len(rows)),
            showlegend=False,
            barmode="stack",
            xaxis={"domain": [0, 0.5], "title": {"text": "idle time by cause, ms"}},
            yaxis={"automargin": True},
            xaxis2={"domain": [0.62, 1], "anchor": "y2", "title": {"text": "length of a piece"}, "automargin": True},
            yaxis2=axis("idle time, ms", anchor="x2"),
        ),
    }


def _cause(row: dict[str, Any], run_id: str) -> dict[str, Any]:
    owner = HIDING.get(row["name"], HIDING["unknown"])[0]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(row["name"]),
        "y": [plain(row["name"])],
        "x": [_ms(row["ns"])],
        "marker": filled(cause_fill(row["name"])),
        "customdata": [[row["pieces"], owner]],
        "hovertemplate": "%{y}: %{x:.4~g} ms, n = %{customdata[0]} pieces<br>%{customdata[1]}"
        + hover_sql("idle", run_id),
    }


def energy_figure(report: EnergyReport, run_id: str) -> Figure | None:
    """Joules by what they went to."""
    rows = [row for row in report.parts if row["energy_j"]]
    if not rows:
        return None
    return {
        "data": [_joules(row, run_id) for row in reversed(rows)],
        "layout": layout(
            height=max(260, 80 + 28 * len(rows)),
            showlegend=False,
            barmode="stack",
            xaxis=axis("energy, J"),
            yaxis={"automargin": True},
        ),
    }


def _joules(row: dict[str, Any], run_id: str) -> dict[str, Any]:
    idle = row["part"] == "idle"
    name = plain(f"{row['part']}{': ' + row['cause'] if row['cause'] else ''}")
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [name],
        "x": [row["energy_j"]],
        "marker": filled(cause_fill(row["cause"]) if idle else Fill(color=PHASE.get(row["part"], GREY))),
        "text": [f"{joules(row['energy_j'])}, {percent(row['share'])}"],
        "hovertemplate": "%{y}: %{text}" + hover_sql("telemetry", run_id),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 6)
