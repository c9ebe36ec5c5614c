"""Sections on steps: the timeline, and prefill against decode."""

from __future__ import annotations

from typing import Any

from analyzers.report.page_html import (
    Cell,
    bullets,
    figure,
    ns,
    number,
    paragraph,
    part,
    section,
    sql_note,
    table,
    words,
)
from analyzers.report.page_sql import sql_of
from analyzers.report.text import duration, share
from analyzers.report_model import Report
from analyzers.report_timeline import BINS, EXACT, MOST_DETAIL
from traces.labels import CAVEATS

Rows = list[list[Cell | str]]


def timeline_section(report: Report) -> str:
    """Steps over time; many are drawn in bins until they are zoomed to."""
    line = report.timeline
    if line is None or not line.rows.height:
        why = report.missing.get("timeline") or "the steps of this recording have no times"
        return section("timeline", "Step timeline", "", why=why)
    total = line.rows.height
    notes = [
        f"{total:,} step{'' if total == 1 else 's'} of rank {line.rank}"
        + (f" (of {line.ranks} ranks; `stepscope steps` has all)" if line.ranks > 1 else "")
        + "."
    ]
    if not line.exact:
        notes.append(
            f"Drawn in up to {BINS} bins of equal time: medians with their range, and means. "
            f"Zoom to {EXACT} steps or fewer to see each of them."
            if total <= MOST_DETAIL
            else f"Drawn in up to {BINS} bins of equal time; more than {MOST_DETAIL:,} steps "
            "are not kept in a page: `stepscope steps --csv`."
        )
    if line.unplaced:
        notes.append(f"{line.unplaced:,} steps have no time and are left out.")
    notes.append("Drag to zoom, double-click to see everything again, or use the buttons.")
    notes.append(_interference(report))
    buttons = "".join(
        f'<button type="button" data-zoom="{action}">{label}</button>'
        for action, label in (
            ("left", "← earlier"),
            ("right", "later →"),
            ("in", "zoom in"),
            ("out", "zoom out"),
            ("all", "all"),
        )
    )
    body = paragraph(" ".join(notes)) + f'<div class="tools" role="group" aria-label="timeline">{buttons}</div>'
    body += figure(
        "timeline", "steps over time: device span by kind, busy and idle, and what the scheduler's state was"
    ) + sql_note(sql_of("steps", report.run_id))
    return section("timeline", "Step timeline", body)


def _interference(report: Report) -> str:
    """How much there is of it; else whether there was none, or it could not be told."""
    mixed = [row for row in report.phases["kinds"] if row["kind"] == "mixed"]
    known = [row["interference_ns"] for row in mixed if row["interference_ns"] is not None]
    if not mixed:
        return "No step mixed a prefill with decodes, so there is no interference."
    if not known:
        return "Interference is not known: the mixed steps are not divided between their phases; see Health for what would do it."
    return f"Triangles are interference: time that decoding requests waited for a prefill in their step, {duration(sum(known))} in all."


def phases_section(report: Report) -> str:
    """Prefill against decode: tokens, time, cost per token, intervals between tokens; steps as `summary` has them."""
    data = report.phases
    busy = sum(row["busy_ns"] or 0 for row in data["totals"])
    totals = _phases_totals(busy, data)
    kinds = _phases_kinds(data)
    itl = _phases_itl(data)
    chart = (
        figure("phases", "device time and cost per token by phase, intervals between tokens with and without prefill")
        if any(row["busy_ns"] for row in data["kinds"])
        else ""
    )
    sql = sql_of("step_kinds", report.run_id)
    body = (
        chart
        + table(
            "device time by phase",
            ["phase", "busy", "share", "tokens", "per token", "tokens/s of device", "tokens/s of window"],
            totals,
            sql=sql_of("phases", report.run_id),
        )
        + _steps(report, sql)
    )
    body += table(
        "cost per token by step kind; the interval is that of prefill's part in mixed steps",
        ["kind", "steps (n)", "per prefill token", "per decode token", "interval from", "to", "interference"],
        kinds,
        sql=sql,
    )
    body += table(
        "time between two results of a decoding request (ITL, in the engine)",
        ["pass", "prefill in the step", "n", "p50", "p90", "p99"],
        itl,
        sql=sql_of("ledger", report.run_id),
    )
    if data["totals"] and not data["itl"]:
        body += paragraph(
            "ITL with and without prefill is not known: it needs the step ledger that `stepscope profile` writes.",
            "missing",
        )
    body += bullets(
        [f"Note: {row['steps']:,} steps: {CAVEATS.get(row['caveat'], row['caveat'])}." for row in data["caveats"]]
    )
    return section("phases", "Prefill against decode", body, why=report.missing.get("phases"))


def _phases_itl(data: Any) -> Rows:
    return [
        [
            words(row["pass"] or "all"),
            words("with prefill" if row["with_prefill"] else "without"),
            number(row["n"]),
            *(ns(row[f"p{at}_ns"]) for at in (50, 90, 99)),
        ]
        for row in data["itl"]
    ]


def _phases_kinds(data: Any) -> Rows:
    return [
        [
            words(row["kind"]),
            number(row["steps"]),
            ns(row["prefill_ns_per_token"]),
            ns(row["decode_ns_per_token"]),
            ns(row["split_low_ns"] if row["kind"] == "mixed" else None),
            ns(row["split_high_ns"] if row["kind"] == "mixed" else None),
            ns(row["interference_ns"]),
        ]
        for row in data["kinds"]
    ]


def _phases_totals(busy: Any, data: Any) -> Rows:
    return [
        [
            words(row["phase"]),
            ns(row["busy_ns"]),
            part(share(row["busy_ns"], busy)),
            number(row["tokens"]),
            ns(row["busy_ns"] / row["tokens"] if row["tokens"] else None),
            number(row["tokens_per_device_s"]),
            number(row["tokens_per_window_s"]),
        ]
        for row in data["totals"]
    ]


def _steps(report: Report, sql: str) -> str:
    rows: Rows = []
    for i, item in enumerate(report.summary.steps):
        cells: list[Cell | str] = [words(item["kind"]), number(item["steps"], f"steps.{i}.steps")]
        cells += [
            number(item[name], f"steps.{i}.{name}") for name in ("prefill_tokens", "decode_tokens", "recompute_tokens")
        ]
        cells += [
            ns(item[name], f"steps.{i}.{name}")
            for name in ("busy_ns", "prefill_ns", "decode_ns", "other_ns", "p50_ns", "p90_ns", "p99_ns")
        ]
        rows.append(cells)
    header = [
        "kind",
        "steps (n)",
        "prefill tokens",
        "decode tokens",
        "recomputed",
        "busy",
        "prefill",
        "decode",
        "no phase",
        "step p50",
        "p90",
        "p99",
    ]
    caption = (
        "steps by kind; p50 to p99: from schedule to result in the engine, where its ledger was recorded, else of the device span that the "
        "timeline draws"
    )
    return table(caption, header, rows, sql=sql)
