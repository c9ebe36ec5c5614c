"""The first lines of a page: where the time went in words, what would change it, and what the recording can carry."""

from __future__ import annotations

from typing import Any

from analyzers.finding_unseen import Unseen
from analyzers.report.page_bar import part_name
from analyzers.report.page_html import (
    Cell,
    bullets,
    figure_number,
    paragraph,
    prose,
    section,
    sql_note,
    table,
    text,
    words,
)
from analyzers.report.page_sql import sql_of
from analyzers.report.text import count, duration, percent
from analyzers.report_budget import BUSY_GROUPS
from analyzers.report_model import Report

_GAIN_OF = {
    "step_time": "the engine's step time",
    "busy": "the devices' busy time",
    "window": "the recorded window",
    "energy": "the energy",
    "token_intervals": "the time between tokens in these steps",
}
_TOP = 3
_STATUS = {"withheld": "withheld", "warning": "warning", "ok": "ok"}


def verdict_section(report: Report) -> str:
    """Sentences on time, phases and latency; the first findings."""
    sentences = [
        *_time_words(report), *_bound_words(report), *_recording_words(report), *_phase_words(report), *_latency_words(report),
    ]  # fmt: skip
    body = "".join(paragraph(line, "lead") for line in sentences)
    body += f"<h3>What would change it</h3>{_findings(report)}"
    return section("verdict", "Where the time goes", body)


def _time_words(report: Report) -> list[str]:
    budget = report.budget
    if budget is None:
        return [f"How the device's time divides is not known: {report.missing['budget']}."]
    over = f"{duration(budget.window_ns)} of device time" + (
        f" ({budget.devices} devices)" if budget.devices > 1 else ""
    )
    hidden = [part for part in budget.parts if part.group == "withheld"]
    if hidden:
        known = sorted((part for part in budget.parts if part.group != "withheld"), key=lambda part: -part.ns)
        told = ", ".join(f"{part_name(part)} {part.tenths / 10:.1f} %" for part in known[:3])
        return [
            f"Of {over}, {percent(hidden[0].share)} cannot be divided: {hidden[0].why}."
            + (f" The rest: {told}." if told else "")
        ]
    idle, unrecorded = budget.group_ns("idle"), budget.group_ns("unrecorded")
    busy = budget.window_ns - idle - unrecorded
    line = f"Of {over}, the device was busy for {percent(busy / budget.window_ns)} and idle for {percent(idle / budget.window_ns)}"
    line += f"; {percent(unrecorded / budget.window_ns)} is not recorded." if unrecorded else "."
    largest = sorted(budget.parts, key=lambda part: -part.ns)[:3]
    named = ", ".join(f"{part_name(part)} ({part.tenths / 10:.1f} %)" for part in largest)
    return [line, f"The largest parts: {named}."]


def _bound_words(report: Report) -> list[str]:
    """How much of the busy time has no bound, and what would give it one."""
    items = [
        item for item in report.findings.not_looked_at if any(name.startswith("kernels") for name in item.findings)
    ]
    budget = report.budget
    parts = [] if budget is None else [part for part in budget.parts if part.group in BUSY_GROUPS]
    unknown, busy = sum(part.ns for part in parts if part.name is None), sum(part.ns for part in parts)
    if not items or not unknown:
        return []
    whys = "; ".join(f"{item.why} ({_mend(item)})" for item in items)
    return [f"What limits {percent(unknown / busy)} of the busy time is not known: {whys}."]


def _recording_words(report: Report) -> list[str]:
    """That the profiler is part of what is measured, where it is not known how much."""
    return [
        f"Caution: {row['message']}."
        for row in report.health
        if row["check_id"] == "recording_cost" and row["status"] == "warning"
    ]


def _mend(item: Unseen) -> str:
    """What to run or to do."""
    return f"`{item.mend}`" if item.mend.startswith("stepscope ") else item.mend


def _unseen(report: Report) -> str:
    items = report.findings.not_looked_at
    if not items:
        return ""
    return paragraph("Not looked at, so these may cost time all the same:", "missing") + bullets(_unseen_lines(report))


def _unseen_lines(report: Report) -> list[str]:
    return [
        f"{item.causes} ({', '.join(item.findings)}): {item.why}. To mend it: {_mend(item)}"
        for item in report.findings.not_looked_at
    ]


def _phase_words(report: Report) -> list[str]:
    rows = {row["phase"]: row for row in report.phases["totals"]}
    parts = [
        f"{row['phase']} {duration(row['busy_ns'])}" + (f" for {count(row['tokens'])} tokens" if row["tokens"] else "")
        for row in rows.values()
        if row["phase"] in ("prefill", "decode", "not split")
    ]
    busy = [row for row in report.summary.categories if row["busy_ns"]]
    whole = sum(row["busy_ns"] for row in busy)
    lines = [f"Device time of the phases: {', '.join(parts)}."] if parts else []
    if busy:
        top = ", ".join(f"{row['category'] or 'not analyzed'} {percent(row['busy_ns'] / whole)}" for row in busy[:3])
        lines.append(f"Kernels that take the most busy time: {top}.")
    waited = sum(row["interference_ns"] or 0 for row in report.phases["kinds"])
    if waited:
        lines.append(f"Decoding requests' steps ran {duration(waited)} longer because a prefill rode along.")
    return lines


def _latency_words(report: Report) -> list[str]:
    summary = report.summary
    rows = {row["term"]: row for row in summary.latency if row["pass"] == summary.latency_pass}
    parts = [
        f"{term.upper()} p50 {duration(rows[term]['p50_ns'])}, p99 {duration(rows[term]['p99_ns'])} (n = {rows[term]['n']:,})"
        for term in ("ttft", "tpot")
        if term in rows
    ]
    if not parts:
        return []
    where = f"{summary.latency_pass} pass" if summary.latency_pass else "all requests"
    return [f"At the client ({where}): {'; '.join(parts)}."]


def _findings(report: Report) -> str:
    rows = report.findings.findings
    if not rows:
        return paragraph(f"No finding: {report.missing['findings']}.", "missing") + _unseen(report)
    shown = "".join(_finding(row) for row in rows[:_TOP])
    rest = "".join(_finding(row) for row in rows[_TOP:])
    more = (
        f'<details><summary>{len(rows) - _TOP} more</summary><ol start="{_TOP + 1}" class="findings">{rest}</ol></details>'
        if rest
        else ""
    )
    return f'<ol class="findings">{shown}</ol>{more}{sql_note(sql_of("findings", report.run_id))}{_unseen(report)}'


def _finding(row: dict[str, Any]) -> str:
    title = f'<strong>{text(row["title"], 300)}</strong> <span class="status {_severity(row)}">{text(row["severity"])}</span>'
    gone = [gain_words(row)]
    if row["device_ns"] is not None:
        share = "" if row["share"] is None else f", {percent(row['share'])} of the devices' window"
        gone.append(f"It explains {duration(row['device_ns'])} of device time{share}.")
    if row["energy_j"] is not None:
        gone.append(f"It explains {row['energy_j']:.3g} J.")
    proved = row.get("proved")
    if proved:
        gone.append(
            f"Proof by running it: {proved['verdict']}"
            + (
                f", measured {percent(proved['measured_gain'])} ± {percent(proved['noise'])}."
                if proved["measured_gain"] is not None and proved["noise"] is not None
                else "."
            )
        )
    fix = prose((row["fix"] or "nothing that a flag can change")[:1500])
    evidence = sql_note(str(row["evidence"])) if row["evidence"] else ""
    return (
        f'<li id="finding-{text(row["finding_id"])}">{title}<p>{prose((row["cause"] or "")[:1500])}</p>'
        f"<p>{text(' '.join(gone), 1000)}</p><p><b>What to do:</b> {fix}</p>{evidence}</li>"
    )


def gain_words(row: dict[str, Any]) -> str:
    """The predicted gain with its interval, which is the confidence it is given with."""
    if row["predicted_gain"] is None and row["gain_high"] is not None:
        of = _GAIN_OF.get(row["gain_of"], "the time")
        return f"The gain is not known; it is at most {percent(row['gain_high'])} of {of}."
    if row["predicted_gain"] is None:
        return "No gain is predicted: this is information."
    of = _GAIN_OF.get(row["gain_of"], "the time")
    return (
        f"Predicted gain: {percent(row['predicted_gain'])} of {of}; confidence: between {percent(row['gain_low'])} and "
        f"{percent(row['gain_high'])}."
    )


def _severity(row: dict[str, Any]) -> str:
    return row["severity"] if row["severity"] in ("info", "warning", "critical") else "info"


def health_section(report: Report) -> str:
    """What the recording can carry: problems first, all checks folded."""
    bad = [row for row in report.health if row["status"] != "ok"]
    if not report.health:
        return section("health", "Health of the recording", "", why="no check was made: ingest the recording again")
    ok = len(report.health) - len(bad)
    warnings = sum(row["status"] == "warning" for row in bad)
    lead = paragraph(
        f"{len(report.health)} checks: {ok} ok, {warnings} with a warning, {len(bad) - warnings} that withhold numbers."
    )
    alerts = "".join(
        f'<p class="alert"><span class="status {_STATUS.get(row["status"], "warning")}">{text(row["status"])}</span> '
        f"{text(row['check_id'])}{_rank(report, row)}: {text(row['message'], 2000)}</p>"
        for row in bad
    )
    rows: list[list[Cell | str]] = [
        [
            words(row["status"]),
            words(row["check_id"]),
            words("all" if row["rank"] is None else row["rank"]),
            figure_number(row["value"], _short(row["value"])),
            figure_number(row["threshold"], _short(row["threshold"])),
            words(row["message"], 400),
        ]
        for row in report.health
    ]
    every = table(
        "every check",
        ["status", "check", "rank", "value", "threshold", "what it means"],
        rows,
        sql=sql_of("health", report.run_id),
    )
    return section(
        "health", "Health of the recording", f"{lead}{alerts}<details><summary>Every check</summary>{every}</details>"
    )


def withheld_section(report: Report) -> str:
    """Numbers that are not given, and why."""
    reasons = dict(report.summary.withheld)
    if report.energy is not None and "energy" not in report.missing:
        reasons.update({f"energy: {name}": why for name, why in report.energy.withheld.items()})
    lines = [f"{name}: {why}" for name, why in reasons.items()]
    lines += [f"section {name}: {why}" for name, why in report.missing.items()]
    lines += [f"not looked at: {line}" for line in _unseen_lines(report)]
    body = bullets(lines) if lines else paragraph("Nothing is withheld: every check of the recording is passed.")
    return section("withheld", "What is withheld or missing", body)


def _rank(report: Report, row: dict[str, Any]) -> str:
    return f" (rank {row['rank']})" if report.several_devices and row["rank"] is not None else ""


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
