"""The page: one HTML file that works offline, from a mail attachment and on paper, and reaches out to nothing."""

from __future__ import annotations

import base64
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
from analyzers.report.page_shell import Sheet, shell
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


def page(report: Report, plotly: str = "inline") -> str:
    """The report as HTML. `plotly`: see page_shell.shell."""
    sheet = Sheet(
        title=text(report.summary.run["name"] or report.run_id, 120), subtitle=_subtitle(report), skip="verdict",
        links=[(key, title) for key, title, _ in SECTIONS], body=patterns() + "".join(make(report) for _, _, make in SECTIONS),
        data=_data(report),
    )  # fmt: skip
    return shell(sheet, plotly)


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
    """What the page's script draws from."""
    return {"figures": figures(report), "detail": _detail(report)}


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


def _subtitle(report: Report) -> str:
    run = report.summary.run
    device = next((row["name"] for row in report.summary.devices if row["name"]), None) or run["device_kind"]
    engine = " ".join(str(run[key]) for key in ("engine", "engine_version") if run[key])
    return " · ".join(text(item, 80) for item in (engine, run["model"], run["dtype"], device, run["run_id"]) if item)
