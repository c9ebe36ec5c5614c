"""The page: one HTML file that works offline, from a mail attachment and on paper, and reaches out to nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import polars as pl

from analyzers.report.figures_load import agents_figure, distribution_figure, requests_figure
from analyzers.report.figures_roofline import roofline_figure
from analyzers.report.figures_steps import Figure, timeline_figure
from analyzers.report.figures_time import energy_figure, idle_figure, phases_figure
from analyzers.report.page_bar import patterns
from analyzers.report.page_facts import methods_section, run_section
from analyzers.report.page_html import text
from analyzers.report.page_load import agents_section, energy_section
from analyzers.report.page_requests import kernels_section, requests_section
from analyzers.report.page_steps import phases_section, timeline_section
from analyzers.report.page_time import budget_section, idle_section, roofline_section
from analyzers.report.page_verdict import health_section, verdict_section, withheld_section
from analyzers.report_model import Report
from analyzers.report_timeline import BINS, EXACT, KINDS, LINES, MOST_DETAIL, STACKED

SECTIONS = (
    ("verdict", "Verdict", verdict_section), ("health", "Health", health_section), ("budget", "Time budget", budget_section),
    ("roofline", "Roofline", roofline_section), ("timeline", "Timeline", timeline_section), ("phases", "Phases", phases_section),
    ("idle", "Idle", idle_section), ("energy", "Energy", energy_section), ("agents", "Agents", agents_section),
    ("requests", "Requests", requests_section), ("kernels", "Kernels", kernels_section), ("run", "Run facts", run_section),
    ("methods", "Definitions", methods_section), ("withheld", "Withheld", withheld_section),
)  # fmt: skip
PLOTLY_SOURCES = ("inline", "cdn")
_CDN = "https://cdn.plot.ly"


def page(report: Report, plotly: str = "inline") -> str:
    """The report as HTML. `plotly`: 'inline' carries the library compressed, 'cdn' loads it from plotly's server."""
    script, style = _asset("page.js"), _asset("page.css")
    library = plotly_library()
    url = f"{_CDN}/plotly-{plotly_version(library)}.min.js"
    allowed = f"'{_digest(script)}' " + (url if plotly == "cdn" else f"'{_digest(library)}'")
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    loader = (
        f'<script src="{url}" integrity="{_digest(library)}" crossorigin="anonymous"></script>' if plotly == "cdn"
        else f'<script type="application/octet-stream" id="plotly-gz">{_packed_library()}</script>'
    )  # fmt: skip
    name = text(report.summary.run["name"] or report.run_id, 120)
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in SECTIONS)
    body = "".join(make(report) for _, _, make in SECTIONS)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta name="referrer" content="no-referrer"><title>{name} · stepscope</title><style>{style}</style></head><body>'
        f'<a class="skip" href="#verdict">Skip to the report</a><header><h1>{name}</h1><p class="sub">{_subtitle(report)}</p></header>'
        f'<nav aria-label="sections">{links}</nav><main>{patterns()}{body}</main><div id="tip" role="tooltip" hidden></div>'
        f'<script type="application/octet-stream" id="figures-gz">{packed(json.dumps(_data(report), allow_nan=False))}</script>'
        f"{loader}<script>{script}</script></body></html>\n"
    )  # fmt: skip


def figures(report: Report) -> dict[str, Figure]:
    """Every figure of the page that has something to show, by name."""
    run_id = report.run_id
    made = {
        "roofline": roofline_figure(report),
        "timeline": None
        if report.timeline is None or not report.timeline.rows.height
        else timeline_figure(report.timeline, run_id),
        "phases": phases_figure(report.phases, run_id),
        "idle": None if report.idle is None else idle_figure(report.idle, run_id),
        "energy": None if report.energy is None else energy_figure(report.energy, run_id),
        "agents": None if report.agents is None else agents_figure(report.agents, run_id),
        "requests": requests_figure(report.request_rows, run_id),
        "latency": distribution_figure(report.request_rows, run_id),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _data(report: Report) -> dict[str, Any]:
    """What the page's script draws from; numbers that are none become null."""
    return {"figures": finite(figures(report)), "detail": _detail(report)}


def _detail(report: Report) -> dict[str, Any] | None:
    """Columns of the steps for zooming, where the figure does not show every step already."""
    line = report.timeline
    if line is None or line.exact or line.rows.height > MOST_DETAIL:
        return None
    columns = {"start_ms": _typed(line.rows["start_ns"].to_numpy() / 1e6, "f8")}
    for name in ("dur_ns", "interference_ns", *STACKED):
        columns[_ms(name)] = _typed(line.rows[name].cast(float).fill_null(float("nan")).to_numpy() / 1e6, "f4")
    for name in LINES:
        columns[name] = _typed(line.rows[name].cast(float).fill_null(float("nan")).to_numpy(), "f4")
    columns["seq"] = _typed(line.rows["seq"].fill_null(-1).to_numpy(), "i4")
    kinds = line.rows["kind"].replace_strict(
        {kind: i for i, kind in enumerate(KINDS)}, default=len(KINDS) - 1, return_dtype=pl.Int8
    )
    columns["kind"] = _typed(kinds.to_numpy(), "i1")
    return {
        "columns": columns,
        "kinds": list(KINDS),
        "stacked": [_ms(name) for name in STACKED],
        "exact": EXACT,
        "bins": BINS,
    }


def _ms(name: str) -> str:
    return f"{name.removesuffix('_ns')}_ms"


def _typed(values: np.ndarray[Any, Any], kind: str) -> dict[str, str]:
    return {"type": kind, "data": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None: JSON has none of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def packed(content: str) -> str:
    """Text as base64 of its gzip form: no character in it means anything to HTML."""
    return base64.b64encode(gzip.compress(content.encode("utf-8", "replace"), 9, mtime=0)).decode("ascii")


@cache
def plotly_library() -> str:
    """plotly.js as the installed package carries it."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@cache
def _packed_library() -> str:
    return packed(plotly_library())


def plotly_version(library: str) -> str:
    """Its version, as its first lines state it."""
    found = re.search(r"plotly\.js v([0-9]+\.[0-9]+\.[0-9]+)", library[:400])
    if found is None:
        raise RuntimeError("the installed plotly.js does not state its version")
    return found.group(1)


@cache
def _asset(name: str) -> str:
    return resources.files("analyzers").joinpath("report", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """What a content security policy and an integrity attribute know a text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


def _subtitle(report: Report) -> str:
    run = report.summary.run
    device = next((row["name"] for row in report.summary.devices if row["name"]), None) or run["device_kind"]
    engine = " ".join(str(run[key]) for key in ("engine", "engine_version") if run[key])
    return " · ".join(text(item, 80) for item in (engine, run["model"], run["dtype"], device, run["run_id"]) if item)
