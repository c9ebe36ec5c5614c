"""Figures of the load: agent turns and requests."""

from __future__ import annotations

from typing import Any

import polars as pl

from analyzers.agents_reading import AgentsReport
from analyzers.report.figures import axis, layout, pattern
from analyzers.report.page_html import plain
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREY, PHASE, PIECE, SKY
from analyzers.report.text import count, duration

Figure = dict[str, Any]
MOST_TURNS, MOST_WATERFALL = 200, 120
_QUANTILES = 100
_GAP = "—"


def agents_figure(report: AgentsReport, run_id: str) -> Figure | None:
    """Prompt tokens of every turn by piece, and the time to its first token."""
    turns = [row for row in report.turns if row["accounted"]][:MOST_TURNS]
    if not turns:
        return None
    x = [
        [plain(row["session_id"] or _GAP, 24) for row in turns],
        [f"turn {row['turn']}" if row["turn"] is not None else _GAP for row in turns],
    ]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": piece.replace("resent_output", "re-sent output"),
            "x": x,
            "y": [row[piece] for row in turns],
            "marker": {"color": PIECE[piece], "pattern": pattern(shape)},
            "hovertemplate": f"%{{x}}<br>{piece.replace('_', ' ')}: %{{y:,}} tokens" + hover_sql("turns", run_id),
        }
        for piece, shape in (("cached", ""), ("fresh", "/"), ("resent_output", "."), ("lost", "x"))
    ]
    traces.append(
        {
            "type": "bar",
            "name": "TTFT",
            "x": x,
            "y": [_ms(row["ttft_ns"]) for row in turns],
            "yaxis": "y2",
            "marker": {"color": SKY, "pattern": pattern("-")},
            "hovertemplate": "%{x}<br>TTFT %{y:.4~g} ms" + hover_sql("requests", run_id),
        }
    )
    return {
        "data": traces,
        "layout": layout(
            height=440,
            barmode="stack",
            xaxis={"type": "multicategory", "automargin": True, "anchor": "y2"},
            yaxis=axis("prompt tokens", domain=[0.42, 1]),
            yaxis2=axis("TTFT, ms", domain=[0, 0.32], rangemode="tozero"),
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        ),
    }


def requests_figure(rows: pl.DataFrame, run_id: str) -> Figure | None:
    """When requests waited, were prefilled and answered; of many, evenly chosen ones."""
    if not rows.height:
        return None
    shown = rows if rows.height <= MOST_WATERFALL else rows.gather_every(-(-rows.height // MOST_WATERFALL))
    items = shown.reverse().to_dicts()
    y = [f"{len(items) - i}" for i in range(len(items))]
    texts = [_request_text(row) for row in items]
    traces = []
    for name, begin, end, color, shape in (
        ("waits", "arrival_ns", "scheduled_ns", GREY, "."),
        ("to the first token", "scheduled_ns", "first_ns", PHASE["prefill"], ""),
        ("to the first token (schedule not known)", "arrival_ns", "first_ns", SKY, "x"),
        ("to the last token", "first_ns", "last_ns", PHASE["decode"], "/"),
    ):
        spans = [_span(row, begin, end) for row in items]
        if all(start is None for start, _ in spans):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": y,
                "base": [_ms(start) for start, _ in spans],
                "x": [None if start is None or end is None else (end - start) / 1e6 for start, end in spans],
                "marker": {"color": color, "pattern": pattern(shape, 6)},
                "text": texts,
                "textposition": "none",
                "hovertemplate": f"%{{text}}<br>{name}: %{{x:.4~g}} ms" + hover_sql("requests", run_id),
            }
        )
    if not traces:
        return None
    return {
        "data": traces,
        "layout": layout(
            height=min(900, max(260, 110 + 14 * len(items))),
            barmode="overlay",
            bargap=0.15,
            xaxis=axis("time since the first arrival, ms"),
            yaxis={"title": {"text": "requests by arrival"}, "type": "category", "showticklabels": len(items) <= 40},
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        ),
    }


def _span(row: dict[str, Any], begin: str, end: str) -> tuple[int | None, int | None]:
    """From one of a request's times to another; what is divided by its schedule is not shown undivided too."""
    divided = (begin, end) == ("arrival_ns", "first_ns") and row["scheduled_ns"] is not None
    if divided or row[begin] is None or row[end] is None or row[end] < row[begin]:
        return None, None
    return row[begin], row[end]


def _request_text(row: dict[str, Any]) -> str:
    name = plain(row["client_request_id"] or row["request_id"], 40)
    session = "" if row["session_id"] is None else f", session {plain(row['session_id'], 24)}"
    turn = "" if row["turn"] is None else f" turn {row['turn']}"
    tokens = f"prompt {count(row['prompt_tokens'])} tokens, {count(row['cached_tokens'])} cached, output {count(row['output_tokens'])}"
    times = f"TTFT {duration(row['ttft_ns'])}, TPOT {duration(row['tpot_ns'])}"
    return f"<b>{name}</b>{session}{turn} ({plain(row['status'] or 'unknown', 20)})<br>{tokens}<br>{times}"


def distribution_figure(rows: pl.DataFrame, run_id: str) -> Figure | None:
    """The share of requests at or below a TTFT and a TPOT."""
    traces = []
    for column, name, color, dash in (
        ("ttft_ns", "TTFT", PHASE["prefill"], "solid"),
        ("tpot_ns", "TPOT", PHASE["decode"], "dash"),
    ):
        values = rows[column].drop_nulls() if rows.height else pl.Series([], dtype=pl.Float64)
        if not values.len():
            continue
        steps = min(_QUANTILES, max(values.len() - 1, 1))
        shares = [i / steps for i in range(steps + 1)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{name} (n = {values.len():,})",
                "line": {"color": color, "dash": dash},
                "marker": {"size": 4},
                "x": [_ms(values.quantile(at, "linear")) for at in shares],
                "y": [100 * at for at in shares],
                "hovertemplate": f"{name}: %{{y:.0f}} % of {values.len():,} at or below %{{x:.4~g}} ms"
                + hover_sql("requests", run_id),
            }
        )
    if not traces:
        return None
    return {
        "data": traces,
        "layout": layout(
            height=320,
            xaxis=axis("ms", rangemode="tozero"),
            yaxis=axis("% of requests"),
            hovermode="closest",
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        ),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 6)
