"""Steps over time as plotly's plain values: `go.Figure(data=…, layout=…)` shows one in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzers.report.figures import axis, hover_number, layout, pattern
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREEN, GREY, PHASE, SYMBOL, VERMILION
from analyzers.report_timeline import KINDS, Timeline, binned

Figure = dict[str, Any]
_STACK = (
    ("prefill_ns", "prefill"),
    ("decode_ns", "decode"),
    ("other_ns", "other"),
    ("busy_ns", "busy"),
    ("idle_ns", "idle"),
    ("unrecorded_ns", "unrecorded"),
)
_STACK_NAME = {
    "prefill": "prefill time",
    "decode": "decode time",
    "other": "time without phase",
    "busy": "busy, not split",
    "idle": "idle in the step",
    "unrecorded": "not recorded",
}
_STACK_PATTERN = {"prefill": "", "decode": "/", "other": "x", "busy": "+", "idle": ".", "unrecorded": "-"}


def timeline_figure(timeline: Timeline, run_id: str) -> Figure:
    """Steps over time: duration by kind and interference, device time per step, requests, KV cache. The page's script draws
    the same traces, in this order, of whatever is zoomed to."""
    exact = timeline.exact
    rows = _exact(timeline.rows) if exact else binned(timeline.rows)
    sql = hover_sql("steps", run_id)
    x = _ms(rows["middle_ns"])
    steps = [
        [row["seq_first"], row["seq_last"], row["n"]] for row in rows.select("seq_first", "seq_last", "n").to_dicts()
    ]
    common: dict[str, Any] = {"x": x, "customdata": steps}
    traces = [_kind_trace(rows, kind, common, sql, exact=exact) for kind in KINDS]
    traces.append(_interference(rows, common, sql))
    stacked = any((timeline.rows[column] > 0).any() for column, _ in _STACK)
    traces += _stacked(rows, common, sql) if stacked else []
    lines = [line for line in _lines(timeline.rows) if _known(timeline.rows, line.column)]
    traces += [_line(rows, line, common, sql) for line in lines]
    hovers = {
        "exact": [_kind_hover(kind, sql, exact=True) for kind in KINDS],
        "bins": [_kind_hover(kind, sql, exact=False) for kind in KINDS],
    }
    panels = {
        "y": "device span, ms",
        **({"y2": "device, ms per step"} if stacked else {}),
        **{line.axis: line.title for line in lines},
    }
    return {
        "data": traces,
        "layout": _shape(panels, _not_recorded(lines, stacked=stacked)),
        "stacked": stacked,
        "lines": [line.column for line in lines],
        "templates": hovers,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of the panel `axis`, whose title is `title`; `unit` of its values, which are `scale` times those of `column`."""

    column: str
    name: str
    color: str
    dash: str
    axis: str
    title: str
    unit: str
    scale: float = 1.0


def _lines(rows: pl.DataFrame) -> list[_Line]:
    """Requests, and the KV cache: its share where the engine told it, else the context that is in it."""
    requests: dict[str, Any] = {"axis": "y3", "title": "requests", "unit": "requests"}
    cache: dict[str, Any] = {"axis": "y4", "name": "KV cache", "color": GREEN, "dash": "solid"}
    return [
        _Line(column="prefill_reqs", name="requests in prefill", color=PHASE["prefill"], dash="solid", **requests),
        _Line(column="decode_reqs", name="requests in decode", color=PHASE["decode"], dash="dash", **requests),
        _Line(column="waiting", name="waiting", color=GREY, dash="dot", **requests),
        _Line(column="kv_usage", title="KV, %", unit="% of blocks", scale=100.0, **cache)
        if _known(rows, "kv_usage")
        else _Line(column="kv_tokens", title="KV, tokens", unit="context tokens", **cache),
    ]


def _known(rows: pl.DataFrame, column: str) -> bool:
    """Whether any step has a value; a panel of none would be an empty one with an axis that means nothing."""
    return rows[column].null_count() < rows.height


def _not_recorded(lines: list[_Line], *, stacked: bool) -> list[str]:
    """What the figure could show and the recording does not hold."""
    gone = [] if stacked else ["device time"]
    columns = {line.column for line in lines}
    requests = [
        ("prefill_reqs", "requests in prefill"),
        ("decode_reqs", "requests in decode"),
        ("waiting", "requests that wait"),
    ]
    absent = [name for column, name in requests if column not in columns]
    gone += ["requests in the step"] if len(absent) == len(requests) else absent
    return gone + ([] if columns & {"kv_usage", "kv_tokens"} else ["KV cache"])


def _interference(rows: pl.DataFrame, common: dict[str, Any], sql: str) -> dict[str, Any]:
    return {
        **common,
        "type": "scatter",
        "mode": "markers",
        "name": "interference",
        "y": _ms(rows["interference_ns"], positive=True),
        "showlegend": bool((rows["interference_ns"] > 0).any()),
        "marker": {"symbol": "triangle-up", "size": 9, "color": VERMILION, "line": {"width": 1}},
        "yaxis": "y",
        "hovertemplate": hover_number("decoding requests waited %{y:.4~g} ms for a prefill") + sql,
    }


def _stacked(rows: pl.DataFrame, common: dict[str, Any], sql: str) -> list[dict[str, Any]]:
    """The parts of a step's device span."""
    traces: list[dict[str, Any]] = []
    width = _ms(rows["width_ns"])
    for column, name in _STACK:
        traces.append(
            {
                **common,
                "type": "bar",
                "name": _STACK_NAME[name],
                "y": _ms(rows[column], positive=True),
                "showlegend": bool((rows[column] > 0).any()),
                "width": width,
                "yaxis": "y2",
                "marker": {"color": PHASE[name], "pattern": pattern(_STACK_PATTERN[name]), "line": {"width": 0}},
                "hovertemplate": hover_number(f"{_STACK_NAME[name]}: %{{y:.4~g}} ms per step") + sql,
            }
        )
    return traces


_HEIGHT, _MARGINS = 720, 85  # of all four panels, in pixels, and of what is above and below them
_ROOM = {"y": 0.30, "y2": 0.25, "y3": 0.17, "y4": 0.16}  # of the height that all four have together
_GAP = 0.04


def _shape(panels: dict[str, str], gone: list[str]) -> dict[str, Any]:
    """Panels over one axis of time; only time can be zoomed."""
    whole = sum(_ROOM[name] for name in panels) + _GAP * (len(panels) - 1)
    axes, top = {}, whole
    for name, title in panels.items():
        low = top - _ROOM[name]
        domain = [max(low / whole, 0.0), top / whole]
        start: dict[str, Any] = {} if name == "y2" else {"rangemode": "tozero"}
        axes[f"yaxis{name[1:]}"] = axis(title, domain=domain, fixedrange=True, **start)
        top = low - _GAP
    note = f"<br>not recorded: {', '.join(gone)}" if gone else ""
    bottom = axis(f"time since the start of the window, ms{note}", anchor=list(panels)[-1], domain=[0, 1])
    return layout(
        height=round(_MARGINS + (_HEIGHT - _MARGINS) * whole),
        barmode="stack",
        bargap=0,
        hovermode="closest",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        xaxis=bottom,
        **axes,
    )


def _exact(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps as bins of their own."""
    own = [
        pl.when(pl.col("kind") == kind).then("dur_ns").alias(f"{kind}_{name}_ns")
        for kind in KINDS
        for name in ("p50", "min", "max")
    ]
    return rows.with_columns(
        *own,
        seq_first="seq",
        seq_last="seq",
        n=pl.lit(1),
        middle_ns=pl.col("start_ns") + pl.col("dur_ns") / 2,
        width_ns="dur_ns",
        busy_ns=pl.col("busy_ns").fill_null(0),
    )


def _kind_trace(rows: pl.DataFrame, kind: str, common: dict[str, Any], sql: str, *, exact: bool) -> dict[str, Any]:
    middle = rows[f"{kind}_p50_ns"]
    up, down = (
        _ms((rows[f"{kind}_max_ns"] - middle) if end else (middle - rows[f"{kind}_min_ns"])) for end in (True, False)
    )
    return {
        **common,
        "type": "scatter",
        "mode": "markers",
        "name": f"{kind} step",
        "y": _ms(middle),
        "showlegend": middle.count() > 0,
        "yaxis": "y",
        "marker": {"color": PHASE[kind], "symbol": SYMBOL[kind], "size": 8, "line": {"width": 0.5}},
        "error_y": {
            "type": "data",
            "array": up,
            "arrayminus": down,
            "symmetric": False,
            "thickness": 1,
            "width": 0,
            "visible": not exact,
        },
        "hovertemplate": _kind_hover(kind, sql, exact=exact),
    }


def _kind_hover(kind: str, sql: str, *, exact: bool) -> str:
    what = "%{y:.4~g} ms" if exact else "median %{y:.4~g} ms, up to +%{error_y.array:.4~g} ms"
    return hover_number(f"{kind}: {what}") + sql


def _line(rows: pl.DataFrame, line: _Line, common: dict[str, Any], sql: str) -> dict[str, Any]:
    values = [None if value is None else round(value * line.scale, 4) for value in rows[line.column].to_list()]
    return {
        **common,
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.name,
        "y": values,
        "yaxis": line.axis,
        "line": {"color": line.color, "dash": line.dash, "shape": "hv", "width": 1.5},
        "marker": {"size": 4},
        "hovertemplate": hover_number(f"{line.name}: %{{y:.4~g}} {line.unit}") + sql,
    }


def _ms(values: pl.Series, *, positive: bool = False) -> list[float | None]:
    """ns as ms; `positive` leaves out what is 0."""
    return [None if value is None or (positive and value <= 0) else round(value / 1e6, 6) for value in values.to_list()]
