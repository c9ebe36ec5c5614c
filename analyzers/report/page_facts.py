"""Sections on the run itself, and what every number of the page means."""

from __future__ import annotations

from datetime import UTC, datetime

from analyzers.report.page_html import Cell, figure_number, number, paragraph, section, table, text, words
from analyzers.report.page_sql import sql_of
from analyzers.report.page_terms import TERMS
from analyzers.report.text import DASH, duration, percent, ratio
from analyzers.report_model import Report

Rows = list[list[Cell | str]]
_FACTS = (
    ("name", "name"),
    ("run", "run_id"),
    ("how it was recorded", "source"),
    ("engine", "engine"),
    ("engine version", "engine_version"),
    ("device kind", "device_kind"),
    ("model", "model"),
    ("data type", "dtype"),
    ("times count from", "clock"),
)
_NS_LIMIT = 253_402_300_799 * 10**9  # the year 9999, the last that a date can have


def run_section(report: Report) -> str:
    """What ran where, the files it was read from, what recording cost."""
    run = report.summary.run
    rows: Rows = [
        [f'<th scope="row">{text(title)}</th>', words(run[key], 120)] for title, key in _FACTS if run[key] is not None
    ]
    if run["created_ns"] is not None and 0 <= run["created_ns"] < _NS_LIMIT:
        rows.append(
            [
                '<th scope="row">recorded or read</th>',
                words(f"{datetime.fromtimestamp(run['created_ns'] // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"),
            ]
        )
    if run["window_start_ns"] is not None and run["window_end_ns"] is not None:
        rows.append(
            [
                '<th scope="row">window</th>',
                figure_number(
                    run["window_end_ns"] - run["window_start_ns"],
                    duration(run["window_end_ns"] - run["window_start_ns"]),
                ),
            ]
        )
    body = table("the run", ["", ""], rows, sql=sql_of("run", report.run_id))
    for title, facts in report.facts.items():
        body += table(
            f"{title} as recorded", ["setting", "value"], [[words(name), words(value)] for name, value in facts]
        )
    files: Rows = [
        [
            words(row["name"], 80),
            words(row["role"]),
            words(row["format"]),
            number(row["bytes"]),
            number(row["events"]),
            words(row["sha256"] or DASH),
            words(row["truncated"] or "whole", 80),
        ]
        for row in report.sources
    ]
    body += table(
        "files it was read from",
        ["file", "role", "format", "bytes", "events (n)", "sha256 begins", "truncated"],
        files,
        sql=sql_of("sources", report.run_id),
    )
    return section("run", "Run facts", body + _overhead(report))


def _overhead(report: Report) -> str:
    cost = report.summary.overhead
    if cost is None:
        return paragraph(
            "What recording cost is not known: it needs a control pass without the profiler, which `stepscope profile` runs.",
            "missing",
        )
    cells: list[Cell | str] = [number(cost["steps"], "overhead.steps")]
    cells += [
        figure_number(cost[name], ratio(cost[name]), f"overhead.{name}") for name in ("step_ratio", "throughput_ratio")
    ]
    cells += [
        number(cost["tokens"], "overhead.tokens"),
        figure_number(cost["tpot_ratio"], ratio(cost["tpot_ratio"]), "overhead.tpot_ratio"),
    ]
    return table(
        "cost of recording: the window against the control pass, at equal token counts",
        ["steps (n)", "step time", "throughput", "tokens (n)", "TPOT"],
        [cells],
        sql=sql_of("ledger", report.run_id),
    )


def methods_section(report: Report) -> str:
    """Definitions, and the thresholds this run was judged by."""
    terms = "".join(f"<dt>{text(term)}</dt><dd>{text(meaning, 2000)}</dd>" for term, meaning in TERMS.items())
    lines = ""
    if report.roofline is not None:
        values = report.roofline.by_category["thresholds"]
        lines = paragraph(
            f"Bounds of this run: the side from {percent(values['good_roof_fraction'], 0)} of the roof on; latency up to "
            f"{values['latency_factor']:.0f} times "
            f"an empty kernel ({duration(values['empty_kernel_ns'])}); above {percent(values['impossible_roof_fraction'], 0)} impossible."
        )
    how = paragraph(
        "Every table names the statement that shows its rows: `stepscope query RUN SQL`. Times are integer nanoseconds in the "
        "database; the exact value of a number shows when it is pointed at."
    )
    return section("methods", "What the numbers mean", f"{how}{lines}<dl>{terms}</dl>")
