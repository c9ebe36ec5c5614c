"""Figures of phases, idleness, energy, agent turns and requests as plotly's plain values."""

from __future__ import annotations

from typing import Any

import polars as pl

from analyzers.agents_reading import AgentsReport
from analyzers.energy_reading import EnergyReport
from analyzers.idle_reading import HIDING, IdleReport
from analyzers.report.energy_parts_text import joules
from analyzers.report.figure_parts import axis, layout

from analyzers.report.page_html import plain
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREEN, GREY, PHASE, PIECE, SKY, VERMILION, WHO_COLOR
from analyzers.report.text import count, duration, percent

Figure = dict[str, Any]
MOST_TURNS, MOST_WATERFALL = 200, 120
_QUANTILES = 100
_GAP = "—"


def phases_figure(data: dict[str, Any], run_id: str) -> Figure | None:
    """Device time of the phases by step kind, and the intervals between tokens with and without a prefill beside."""
    kinds = [row for row in data["kinds"] if row["busy_ns"]]
    if not kinds:
        return None
    traces: list[dict[str, Any]] = []
    for phase, pattern in (("prefill", ""), ("decode", "/"), ("other", "x")):
        traces.append({
            "type": "bar", "name": f"{phase} time", "x": [row["kind"] for row in kinds], "y": [_ms(row[f"{phase}_ns"]) for row in kinds],
            "marker": {"color": PHASE[phase], "pattern": {"shape": pattern}}, "text": [f"n = {row['steps']:,} steps" for row in kinds],
            "textposition": "none", "hovertemplate": f"{phase} in %{{x}} steps: %{{y:.4~g}} ms<br>%{{text}}" + hover_sql("step_kinds", run_id),
        })  # fmt: skip
    for phase, symbol in (("prefill", "circle"), ("decode", "square")):
        key = f"{phase}_ns_per_token"
        rows = [row for row in kinds if row[key]]
        traces.append({
            "type": "scatter", "mode": "markers", "name": f"per {phase} token", "x": [row["kind"] for row in rows],
            "y": [row[key] / 1e3 for row in rows], "xaxis": "x2", "yaxis": "y2",
            "marker": {"color": PHASE[phase], "symbol": symbol, "size": 13, "line": {"width": 1}}, "text": [count(row[f"{phase}_tokens"]) for row in rows],
            "hovertemplate": f"%{{y:.4~g}} µs of device time per {phase} token<br>n = %{{text}} tokens" + hover_sql("step_kinds", run_id),
        })  # fmt: skip
    for beside, symbol in ((False, "circle"), (True, "triangle-up")):
        rows = [row for row in data["itl"] if bool(row["with_prefill"]) is beside]
        if not rows:
            continue
        row = max(rows, key=lambda item: item["n"])
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": f"ITL {'with' if beside else 'without'} prefill", "x": ["p50", "p90", "p99"],
            "y": [_ms(row[f"p{at}_ns"]) for at in (50, 90, 99)], "xaxis": "x3", "yaxis": "y3",
            "line": {"color": VERMILION if beside else GREEN, "dash": "dash" if beside else "solid"}, "marker": {"symbol": symbol, "size": 11},
            "hovertemplate": f"%{{x}}: %{{y:.4~g}} ms between tokens<br>n = {row['n']:,}, {plain(row['pass'] or 'all')} pass" + hover_sql("ledger", run_id),
        })  # fmt: skip
    return {
        "data": traces,
        "layout": layout(
            height=380, barmode="stack", xaxis={"domain": [0, 0.27], "title": {"text": "step kind"}},
            xaxis2={"domain": [0.38, 0.62], "anchor": "y2", "title": {"text": "step kind"}, "type": "category"},
            xaxis3={"domain": [0.74, 1], "anchor": "y3", "title": {"text": "percentile of ITL"}, "type": "category"},
            yaxis=axis("device time, ms"), yaxis2=axis("µs per token", anchor="x2", rangemode="tozero"),
            yaxis3=axis("ITL, ms", anchor="x3", rangemode="tozero"), legend={"orientation": "h", "y": -0.25},
        ),
    }  # fmt: skip


def idle_figure(report: IdleReport, run_id: str) -> Figure | None:
    """Idle time by cause, coloured by who has to do less, and by the length of a piece."""
    if not report.groups:
        return None
    rows = list(reversed(report.groups))
    owners = [HIDING.get(row["name"], HIDING["unknown"])[0] for row in rows]
    data = [{
        "type": "bar", "orientation": "h", "name": "by cause", "y": [plain(row["name"]) for row in rows], "x": [_ms(row["ns"]) for row in rows],
        "marker": {"color": [WHO_COLOR[who] for who in owners]}, "customdata": [[row["pieces"], who] for row, who in zip(rows, owners, strict=True)],
        "hovertemplate": "%{y}: %{x:.4~g} ms, n = %{customdata[0]} pieces<br>%{customdata[1]}" + hover_sql("idle", run_id),
    }, {
        "type": "bar", "name": "by length", "x": [f"from {duration(row['low_ns'])}" if row["low_ns"] else "below 1 µs" for row in report.sizes],
        "y": [_ms(row["ns"]) for row in report.sizes], "marker": {"color": SKY, "pattern": {"shape": "/"}}, "customdata": [row["pieces"] for row in report.sizes],
        "xaxis": "x2", "yaxis": "y2", "hovertemplate": "pieces %{x}: %{y:.4~g} ms, n = %{customdata}" + hover_sql("gaps", run_id),
    }]  # fmt: skip
    return {"data": data, "layout": layout(
        height=max(300, 60 + 28 * len(rows)), showlegend=False, xaxis={"domain": [0, 0.5], "title": {"text": "idle time by cause, ms"}},
        yaxis={"automargin": True}, xaxis2={"domain": [0.62, 1], "anchor": "y2", "title": {"text": "length of a piece"}, "automargin": True},
        yaxis2=axis("idle time, ms", anchor="x2"),
    )}  # fmt: skip


def energy_figure(report: EnergyReport, run_id: str) -> Figure | None:
    """Joules by what they went to."""
    rows = [row for row in report.parts if row["energy_j"]]
    if not rows:
        return None
    names = [f"{row['part']}{': ' + row['cause'] if row['cause'] else ''}" for row in rows]
    return {"data": [{
        "type": "bar", "orientation": "h", "y": [plain(name) for name in reversed(names)], "x": [row["energy_j"] for row in reversed(rows)],
        "marker": {"color": [PHASE.get(row["part"], GREY) for row in reversed(rows)]},
        "text": [f"{joules(row['energy_j'])}, {percent(row['share'])}" for row in reversed(rows)],
        "hovertemplate": "%{y}: %{text}" + hover_sql("telemetry", run_id),
    }], "layout": layout(height=max(260, 80 + 28 * len(rows)), showlegend=False, xaxis=axis("energy, J"), yaxis={"automargin": True})}  # fmt: skip


def agents_figure(report: AgentsReport, run_id: str) -> Figure | None:
    """Prompt tokens of every turn by piece, and the time to its first token."""
    turns = [row for row in report.turns if row["accounted"]][:MOST_TURNS]
    if not turns:
        return None
    x = [[plain(row["session_id"] or _GAP, 24) for row in turns], [f"turn {row['turn']}" if row["turn"] is not None else _GAP for row in turns]]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar", "name": piece.replace("resent_output", "re-sent output"), "x": x, "y": [row[piece] for row in turns],
            "marker": {"color": PIECE[piece], "pattern": {"shape": pattern}},
            "hovertemplate": f"%{{x}}<br>{piece.replace('_', ' ')}: %{{y:,}} tokens" + hover_sql("turns", run_id),
        }
        for piece, pattern in (("cached", ""), ("fresh", "/"), ("resent_output", "."), ("lost", "x"))
    ]  # fmt: skip
    traces.append({
        "type": "scatter", "mode": "lines+markers", "name": "TTFT", "x": x, "y": [_ms(row["ttft_ns"]) for row in turns], "yaxis": "y2",
        "marker": {"color": VERMILION, "symbol": "diamond", "size": 8}, "line": {"dash": "dot", "color": VERMILION}, "connectgaps": False,
        "hovertemplate": "%{x}<br>TTFT %{y:.4~g} ms" + hover_sql("requests", run_id),
    })  # fmt: skip
    return {"data": traces, "layout": layout(
        height=440, barmode="stack", xaxis={"type": "multicategory", "automargin": True, "anchor": "y2"},
        yaxis=axis("prompt tokens", domain=[0.42, 1]), yaxis2=axis("TTFT, ms", domain=[0, 0.32], rangemode="tozero"),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )}  # fmt: skip


def requests_figure(rows: pl.DataFrame, run_id: str) -> Figure | None:
    """When requests waited, were prefilled and answered; of many, evenly chosen ones."""
    if not rows.height:
        return None
    shown = rows if rows.height <= MOST_WATERFALL else rows.gather_every(-(-rows.height // MOST_WATERFALL))
    items = shown.reverse().to_dicts()
    y = [f"{len(items) - i}" for i in range(len(items))]
    texts = [_request_text(row) for row in items]
    traces = []
    for name, begin, end, color, pattern in (
        ("waits", "arrival_ns", "scheduled_ns", GREY, "."), ("to the first token", "scheduled_ns", "first_ns", PHASE["prefill"], ""),
        ("to the first token (schedule not known)", "arrival_ns", "first_ns", SKY, "x"), ("to the last token", "first_ns", "last_ns", PHASE["decode"], "/"),
    ):  # fmt: skip
        undivided = name.endswith(")")
        spans = [
            (row[begin], row[end]) if None not in (row[begin], row[end]) and row[end] >= row[begin]
            and (not undivided or row["scheduled_ns"] is None) else (None, None) for row in items
        ]  # fmt: skip
        if all(start is None for start, _ in spans):
            continue
        traces.append({
            "type": "bar", "orientation": "h", "name": name, "y": y, "base": [_ms(start) for start, _ in spans],
            "x": [None if start is None or end is None else (end - start) / 1e6 for start, end in spans],
            "marker": {"color": color, "pattern": {"shape": pattern, "size": 6}}, "text": texts, "textposition": "none",
            "hovertemplate": f"%{{text}}<br>{name}: %{{x:.4~g}} ms" + hover_sql("requests", run_id),
        })  # fmt: skip
    if not traces:
        return None
    return {"data": traces, "layout": layout(
        height=min(900, max(260, 110 + 14 * len(items))), barmode="overlay", bargap=0.15, xaxis=axis("time since the first arrival, ms"),
        yaxis={"title": {"text": "requests by arrival"}, "type": "category", "showticklabels": len(items) <= 40}, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )}  # fmt: skip


def _request_text(row: dict[str, Any]) -> str:
    name = plain(row["client_request_id"] or row["request_id"], 40)
    session = "" if row["session_id"] is None else f", session {plain(row['session_id'], 24)}"
    turn = "" if row["turn"] is None else f" turn {row['turn']}"
    tokens = f"prompt {count(row['prompt_tokens'])} tokens, {count(row['cached_tokens'])} cached, output {count(row['output_tokens'])}"
    return f"<b>{name}</b>{session}{turn} ({plain(row['status'] or 'unknown', 20)})<br>{tokens}<br>TTFT {duration(row['ttft_ns'])}, TPOT {duration(row['tpot_ns'])}"


def distribution_figure(rows: pl.DataFrame, run_id: str) -> Figure | None:
    """The share of requests at or below a TTFT and a TPOT."""
    traces = []
    for column, name, color, dash in (("ttft_ns", "TTFT", PHASE["prefill"], "solid"), ("tpot_ns", "TPOT", PHASE["decode"], "dash")):
        values = rows[column].drop_nulls() if rows.height else pl.Series([], dtype=pl.Float64)
        if not values.len():
            continue
        steps = min(_QUANTILES, max(values.len() - 1, 1))
        shares = [i / steps for i in range(steps + 1)]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": f"{name} (n = {values.len():,})", "line": {"color": color, "dash": dash},
            "marker": {"size": 4}, "x": [_ms(values.quantile(at, "linear")) for at in shares], "y": [100 * at for at in shares],
            "hovertemplate": f"{name}: %{{y:.0f}} % of {values.len():,} at or below %{{x:.4~g}} ms" + hover_sql("requests", run_id),
        })  # fmt: skip
    if not traces:
        return None
    return {"data": traces, "layout": layout(height=320, xaxis=axis("ms", rangemode="tozero"), yaxis=axis("% of requests"), hovermode="closest",
                                             legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})}  # fmt: skip


def _ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 6)
