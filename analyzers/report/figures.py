"""Figures of device time as plotly's plain values: the roofline, and steps over time. `go.Figure(figure)` shows one in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from analyzers.report.figure_parts import axis, hover_number, layout
from analyzers.report.page_html import plain
from analyzers.report.page_sql import hover_sql
from analyzers.report.palette import GREEN, GREY, PHASE, SYMBOL, VERMILION
from analyzers.report.roofline_text import scaled
from analyzers.report.text import duration, percent
from analyzers.report_model import Report, Roofline
from analyzers.report_timeline import EXACT, KINDS, Timeline, binned

Figure = dict[str, Any]
_KERNELS = 150
_DASH = {True: "solid", False: "dot"}
_STACK = (("prefill_ns", "prefill"), ("decode_ns", "decode"), ("other_ns", "other"), ("busy_ns", "busy"),
          ("idle_ns", "idle"), ("unrecorded_ns", "unrecorded"))  # fmt: skip
_STACK_NAME = {"other": "no phases", "busy": "busy, not split", "unrecorded": "not recorded"}
_STACK_PATTERN = {"prefill": "", "decode": "/", "other": "x", "busy": "+", "idle": ".", "unrecorded": "-"}


def roofline_figure(report: Report) -> Figure | None:
    """FLOP/s over FLOP/byte: roofs, kernels, categories, phases and steps; None where no cost is known."""
    data = report.roofline
    if data is None:
        return None
    sql, steps_sql = hover_sql("kernels", report.run_id), hover_sql("steps", report.run_id)
    points = [
        _points(
            "steps", [(f"{row['kind']} step {row['seq']}" + (f" and {row['n'] - 1} like it" if row["n"] > 1 else ""), row)
                      for row in data.steps], steps_sql, symbol="circle-open", color=GREY, size=7,
        ),
        _points("kernels", _named(data.by_kernel["rows"][:_KERNELS]), sql, symbol="circle", color=PHASE["prefill"], size=9),
        _points("categories", _named(data.by_category["rows"]), sql, symbol="diamond", color=VERMILION, size=13),
        _points("phases", _phases(data), sql, symbol="star", color=GREEN, size=17),
    ]  # fmt: skip
    traces = [trace for trace in points if trace["x"]]
    if not traces:
        return None
    x = [value for trace in traces for value in trace["x"]]
    traces = [*_roofs(data, min(x), max(x)), *traces]
    return {
        "data": traces,
        "layout": layout(
            height=460, xaxis=axis("arithmetic intensity, FLOP/byte", log=True), yaxis=axis("FLOP/s", log=True, si=True),
            hovermode="closest", legend={"orientation": "h", "y": -0.2},
        ),
    }  # fmt: skip


_Row = dict[str, Any]


def _named(rows: Iterable[_Row]) -> list[tuple[str, _Row]]:
    return [(str(row["name"] if "name" in row else row["category"]), row) for row in rows]


def _phases(data: Roofline) -> list[tuple[str, _Row]]:
    """Phases with their rate over device time."""
    found = []
    for row in data.by_category["phases"]:
        if row["flops"] and row["busy_ns"] and row["phase"] != "all":
            found.append((row["phase"], {**row, "flops_per_s": row["flops"] / row["busy_ns"] * 1e9}))
    return found


def _points(
    name: str, rows: Sequence[tuple[str, _Row]], sql: str, *, symbol: str, color: str, size: int
) -> dict[str, Any]:
    known = [(label, row) for label, row in rows if (row.get("intensity") or 0) > 0 and (row.get("flops_per_s") or 0) > 0]
    return {
        "type": "scatter", "mode": "markers", "name": f"{name} (n = {len(known):,})", "x": [row["intensity"] for _, row in known],
        "y": [row["flops_per_s"] for _, row in known], "text": [_point_text(label, row) for label, row in known],
        "hovertemplate": "%{text}" + sql, "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 1}},
    }  # fmt: skip


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
        traces.append({
            "type": "scatter", "mode": "lines+markers", "x": x, "y": [min(roof.peak_flops, value * roof.peak_bandwidth) for value in x],
            "name": f"roof ({roof.source}{'' if roof.used else ', for comparison'})", "line": {"dash": _DASH[roof.used], "width": 2, "color": GREY},
            "marker": {"symbol": "triangle-down", "size": [0, 10, 0], "color": GREY},
            "hovertemplate": f"{plain(roof.device or 'device')}: {scaled(roof.peak_flops, 'FLOP/s')}, {scaled(roof.peak_bandwidth, 'B/s')}"
            f"<br>ridge {ridge:.3g} FLOP/byte ({roof.source})<extra></extra>",
        })  # fmt: skip
    return traces


def timeline_figure(timeline: Timeline, run_id: str) -> Figure:
    """Steps over time: duration by kind and interference, device time per step, requests, KV cache. The page's script draws
    the same traces, in this order, of whatever is zoomed to."""
    exact = timeline.exact
    rows = _exact(timeline.rows) if exact else binned(timeline.rows)
    sql = hover_sql("steps", run_id)
    x = _ms(rows["middle_ns"])
    steps = [[row["seq_first"], row["seq_last"], row["n"]] for row in rows.select("seq_first", "seq_last", "n").to_dicts()]
    common: dict[str, Any] = {"x": x, "customdata": steps}
    traces = [_kind_trace(rows, kind, common, sql, exact=exact) for kind in KINDS]
    traces.append({
        **common, "type": "scatter", "mode": "markers", "name": "interference", "y": _ms(rows["interference_ns"], positive=True),
        "marker": {"symbol": "triangle-up", "size": 9, "color": VERMILION, "line": {"width": 1}}, "yaxis": "y",
        "hovertemplate": hover_number("decoding requests waited %{y:.4~g} ms for a prefill") + sql,
    })  # fmt: skip
    width = _ms(rows["width_ns"])
    for column, name in _STACK:
        traces.append({
            **common, "type": "bar", "name": _STACK_NAME.get(name, name), "y": _ms(rows[column]), "width": width, "yaxis": "y2",
            "marker": {"color": PHASE[name], "pattern": {"shape": _STACK_PATTERN[name], "size": 6}, "line": {"width": 0}},
            "hovertemplate": hover_number(f"{_STACK_NAME.get(name, name)}: %{{y:.4~g}} ms per step") + sql,
        })  # fmt: skip
    for column, name, color, dash in (
        ("prefill_reqs", "requests in prefill", PHASE["prefill"], "solid"), ("decode_reqs", "requests in decode", PHASE["decode"], "dash"),
        ("waiting", "waiting", GREY, "dot"),
    ):  # fmt: skip
        traces.append(_line(rows, column, common, sql, name=name, color=color, dash=dash, axis_name="y3", unit="requests"))
    usage = timeline.rows["kv_usage"].null_count() < timeline.rows.height
    kv = "kv_usage" if usage else "kv_tokens"
    scale = 100.0 if usage else 1.0
    traces.append(_line(rows, kv, common, sql, name="KV cache", color=GREEN, dash="solid", axis_name="y4",
                        unit="% of blocks" if usage else "context tokens", scale=scale))  # fmt: skip
    bottom = {"anchor": "y4", "title": {"text": "time since the start of the window, ms"}, "domain": [0, 1]}
    shape = layout(
        height=720, barmode="stack", bargap=0, hovermode="closest", legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        xaxis=bottom, yaxis=axis("step, ms", domain=[0.7, 1]), yaxis2=axis("device, ms per step", domain=[0.41, 0.66]),
        yaxis3=axis("requests", domain=[0.2, 0.37]), yaxis4=axis("KV, %" if usage else "KV, tokens", domain=[0, 0.16]),
    )  # fmt: skip
    return {"data": traces, "layout": shape, "kv": kv, "exact_steps": EXACT}


def _exact(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps as bins of their own."""
    own = [
        pl.when(pl.col("kind") == kind).then("dur_ns").alias(f"{kind}_{name}_ns") for kind in KINDS for name in ("p50", "min", "max")
    ]  # fmt: skip
    return rows.with_columns(
        *own, seq_first="seq", seq_last="seq", n=pl.lit(1), middle_ns=pl.col("start_ns") + pl.col("dur_ns") / 2, width_ns="dur_ns",
        busy_ns=pl.col("busy_ns").fill_null(0),
    )  # fmt: skip


def _kind_trace(rows: pl.DataFrame, kind: str, common: dict[str, Any], sql: str, *, exact: bool) -> dict[str, Any]:
    middle = rows[f"{kind}_p50_ns"]
    up, down = (
        _ms((rows[f"{kind}_max_ns"] - middle) if end else (middle - rows[f"{kind}_min_ns"])) for end in (True, False)
    )
    what = "%{y:.4~g} ms" if exact else "median %{y:.4~g} ms, up to +%{error_y.array:.4~g} ms"
    return {
        **common, "type": "scatter", "mode": "markers", "name": kind, "y": _ms(middle), "yaxis": "y",
        "marker": {"color": PHASE[kind], "symbol": SYMBOL[kind], "size": 8, "line": {"width": 0.5}},
        "error_y": {"type": "data", "array": up, "arrayminus": down, "symmetric": False, "thickness": 1, "width": 0, "visible": not exact},
        "hovertemplate": hover_number(f"{kind}: {what}") + sql,
    }  # fmt: skip


def _line(
    rows: pl.DataFrame, column: str, common: dict[str, Any], sql: str, *, name: str, color: str, dash: str, axis_name: str,
    unit: str, scale: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    values = [None if value is None else round(value * scale, 4) for value in rows[column].to_list()]
    return {
        **common, "type": "scatter", "mode": "lines+markers", "name": name, "y": values, "yaxis": axis_name,
        "line": {"color": color, "dash": dash, "shape": "hv", "width": 1.5}, "marker": {"size": 4},
        "hovertemplate": hover_number(f"{name}: %{{y:.4~g}} {unit}") + sql,
    }  # fmt: skip


def _ms(values: pl.Series, *, positive: bool = False) -> list[float | None]:
    """ns as ms; `positive` leaves out what is 0."""
    return [
        None if value is None or (positive and value <= 0) else round(value / 1e6, 6) for value in values.to_list()
    ]
