"""Steps over time as plotly's plain values: `go.Figure(data=…, layout=…)` shows one in a notebook."""

from __future__ import annotations

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
    traces += _stacked(rows, common, sql)
    for column, name, color, dash in (
        ("prefill_reqs", "requests in prefill", PHASE["prefill"], "solid"),
        ("decode_reqs", "requests in decode", PHASE["decode"], "dash"),
        ("waiting", "waiting", GREY, "dot"),
    ):
        traces.append(
            _line(rows, column, common, sql, name=name, color=color, dash=dash, axis_name="y3", unit="requests")
        )
    usage = timeline.rows["kv_usage"].null_count() < timeline.rows.height
    kv = "kv_usage" if usage else "kv_tokens"
    scale = 100.0 if usage else 1.0
    traces.append(
        _line(
            rows,
            kv,
            common,
            sql,
            name="KV cache",
            color=GREEN,
            dash="solid",
            axis_name="y4",
            unit="% of blocks" if usage else "context tokens",
            scale=scale,
        )
    )
    hovers = {
        "exact": [_kind_hover(kind, sql, exact=True) for kind in KINDS],
        "bins": [_kind_hover(kind, sql, exact=False) for kind in KINDS],
    }
    return {"data": traces, "layout": _shape(usage=usage), "kv": kv, "templates": hovers}


def _stacked(rows: pl.DataFrame, common: dict[str, Any], sql: str) -> list[dict[str, Any]]:
    """Interference, and the parts of a step's device span."""
    traces: list[dict[str, Any]] = []
    traces.append(
        {
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
    )
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


def _shape(*, usage: bool) -> dict[str, Any]:
    """Four rows over one axis of time; only time can be zoomed."""
    bottom = axis("time since the start of the window, ms", anchor="y4", domain=[0, 1])
    return layout(
        height=720,
        barmode="stack",
        bargap=0,
        hovermode="closest",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        xaxis=bottom,
        yaxis=axis("step, ms", domain=[0.7, 1], fixedrange=True, rangemode="tozero"),
        yaxis2=axis("device, ms per step", domain=[0.41, 0.66], fixedrange=True),
        yaxis3=axis("requests", domain=[0.2, 0.37], fixedrange=True, rangemode="tozero"),
        yaxis4=axis("KV, %" if usage else "KV, tokens", domain=[0, 0.16], fixedrange=True, rangemode="tozero"),
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


def _line(
    rows: pl.DataFrame,
    column: str,
    common: dict[str, Any],
    sql: str,
    *,
    name: str,
    color: str,
    dash: str,
    axis_name: str,
    unit: str,
    scale: float = 1.0,
) -> dict[str, Any]:
    values = [None if value is None else round(value * scale, 4) for value in rows[column].to_list()]
    return {
        **common,
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "y": values,
        "yaxis": axis_name,
        "line": {"color": color, "dash": dash, "shape": "hv", "width": 1.5},
        "marker": {"size": 4},
        "showlegend": rows[column].count() > 0,
        "hovertemplate": hover_number(f"{name}: %{{y:.4~g}} {unit}") + sql,
    }


def _ms(values: pl.Series, *, positive: bool = False) -> list[float | None]:
    """ns as ms; `positive` leaves out what is 0."""
    return [None if value is None or (positive and value <= 0) else round(value / 1e6, 6) for value in values.to_list()]
