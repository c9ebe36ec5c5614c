"""The terminal form of `requests`."""

from __future__ import annotations

from typing import Any

from analyzers.report.text import DASH, count, duration, percent, share, shown, table
from analyzers.requests import ALL_PASSES, PARTS, RequestsReport

_LATENCY = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("queue", "queue"), ("e2e", "E2E"))
_TERMS = {"ttft": "TTFT", "e2e": "E2E"}
_MEANING = {
    "frontend": "sent → queued in the engine",
    "queue": "queued → first step",
    "prefill": "own prefill",
    "interference": "waiting for others' prefill",
    "decode": "own decode, batched or not",
    "preempted": "preempted → scheduled again",
    "gap": "host and idle: no step ran",
    "stream": "last result → client",
}
_CAUSE = {
    "frontend": "the way to the engine (HTTP, tokenizer)",
    "queue": "the queue",
    "prefill": "their own prefill",
    "interference": "waiting while others were prefilled",
    "decode": "their own decode",
    "preempted": "being preempted",
    "gap": "gaps in which the engine ran no step",
    "stream": "the way back to the client",
}
_UNKNOWN = {
    "no step ledger": "this run has no step ledger, which the parts are cut at; `stepscope profile` writes one",
    "ledger incomplete": "the ledger ends before they do",
    "not in the ledger": "the ledger does not know them: another replica, or another engine",
    "no end recorded": "they were still running, or their end is not recorded",
    "ends before it arrives": "their times contradict each other",
    "no decode-only step": "no decode-only step to compare with: what others' prefill added is inside own decode",
}
_SMALL = 100  # requests below which a p99 is little more than the maximum
_NOTABLE = 0.02  # of the term: a smaller difference explains nothing


def requests_lines(report: RequestsReport) -> list[str]:
    """Latency, where the requests' time goes, what makes the slow ones slow, and the slowest ones."""
    sections = (
        _title(report),
        _latency(report),
        _parts(report),
        _explained(report),
        _slowest(report),
        _unknown(report),
    )
    return _joined(sections)


def request_lines(report: RequestsReport) -> list[str]:
    """The one request that was asked for."""
    row = report.requests[0]
    facts = [f"pass {shown(row['pass'], 40)}" if row["pass"] else None, shown(row["status"], 40)]
    if row["session_id"] is not None:
        turn = "" if row["turn"] is None else f", turn {row['turn']}"
        facts.append(f"session {shown(row['session_id'], 30)}{turn}")
    lines = [shown(row["request_id"], 90), "  " + " · ".join(str(fact) for fact in facts if fact)]
    if row["error"]:
        lines.append(f"  {shown(row['error'], 90)}")
    tokens = f"  prompt {count(row['prompt_tokens'])} tokens ({count(row['cached_tokens'])} cached)"
    tokens += f", output {count(row['output_tokens'])}"
    lines.append(tokens + (f", preempted {row['n_preemptions']} times" if row["n_preemptions"] else ""))
    lines.append(
        f"  TTFT {duration(row['ttft_ns'])}, TPOT {duration(row['tpot_ns'])}, E2E {duration(row['e2e_ns'])}; ITL p50 "
        f"{duration(row['itl_p50_ns'])}, p99 {duration(row['itl_p99_ns'])}, max {duration(row['itl_max_ns'])} "
        f"(n = {count(row['itl_n'])})"
    )
    return _joined((lines, _one(row), _reason(row["why"], 1)))


def _joined(sections: tuple[list[str], ...]) -> list[str]:
    lines: list[str] = []
    for section in sections:
        lines += [*section, ""] if section else []
    return lines[:-1]


def _title(report: RequestsReport) -> list[str]:
    chosen = [row for row in report.passes if report.pass_name == ALL_PASSES or row["pass"] == report.pass_name]
    total, failed = sum(row["requests"] for row in chosen), sum(row["failed"] for row in chosen)
    which = f"{shown(report.pass_name, 40)} pass" if report.pass_name not in (None, ALL_PASSES) else "all requests"
    late = [row["lateness_p99_ns"] for row in chosen if row["lateness_p99_ns"] is not None]
    text = f"{which} of {report.run_id}: {count(total)} requests, {count(failed)} failed"
    return [text + (f"; sent late by p99 {duration(max(late))}" if late else "")]


def _latency(report: RequestsReport) -> list[str]:
    known = {row["term"]: row for row in report.latency if report.pass_name != ALL_PASSES or len(report.passes) == 1}
    rows = [
        [title, duration(row["p50_ns"]), duration(row["p90_ns"]), duration(row["p99_ns"]), count(row["n"])]
        for term, title in _LATENCY
        if (row := known.get(term))
    ]
    return ["latency at the client", *table(["", "p50", "p90", "p99", "n"], rows)] if rows else []


def _parts(report: RequestsReport) -> list[str]:
    rows = []
    term = next((item for item in report.terms if item["term"] == "e2e"), None)
    if term is None:
        return []
    parts = {row["part"]: row for row in report.parts if row["term"] == "e2e"}
    total = sum(row["total_ns"] for row in parts.values())
    for part in PARTS:
        row = parts[part]
        cells = [
            percent(share(row["total_ns"], total)),
            *(duration(row[key]) for key in ("p50_ns", "p99_ns", "middle_ns", "slow_ns")),
        ]
        rows.append([part, _MEANING[part], *cells])
    rows.append(
        ["E2E", "", "", *(duration(term[key]) for key in ("p50_ns", "p99_ns", "middle_wall_ns", "slow_wall_ns"))]
    )
    header = ["part", "", "share", "p50", "p99", f"middle {term['middle']}", f"slowest {term['slow']}"]
    title = f"where their time goes (n = {term['n']:,}; the last two columns are means, and sum to E2E)"
    return [title, *table(header, rows, left=2, drop=("p50", "share"))]


def _explained(report: RequestsReport) -> list[str]:
    lines = [line for term in ("e2e", "ttft") for line in _explain(report, term)]
    return ["what makes the slow ones slow", *lines] if lines else []


def _explain(report: RequestsReport, name: str) -> list[str]:
    term = next((row for row in report.terms if row["term"] == name), None)
    if term is None:
        return []
    more_ns = term["slow_wall_ns"] - term["middle_wall_ns"]
    title = f"  {_TERMS[name]}: p50 {duration(term['p50_ns'])}, p99 {duration(term['p99_ns'])} (n = {term['n']:,})"
    if more_ns < _NOTABLE * term["middle_wall_ns"]:
        return [title, "    the slowest are no slower than those in the middle"]
    parts = sorted((row for row in report.parts if row["term"] == name), key=lambda row: row["share"], reverse=True)
    causes = [row for row in parts if row["share"] >= 0.1] or parts[:1]
    words = ", ".join(
        f"{'all' if row['share'] > 0.995 else percent(row['share'], 0)} {_CAUSE[row['part']]}" for row in causes
    )
    lines = [
        title,
        f"    the slowest {term['slow']} took {duration(more_ns)} longer than the {term['middle']} in the middle:",
        f"    {words}",
    ]
    lines += [f"    {line}" for line in _behind(term, causes[0])]
    if term["n"] < _SMALL:
        lines.append(f"    (of {term['n']} requests p99 says little more than the maximum)")
    return lines


def _behind(term: dict[str, Any], cause: dict[str, Any]) -> list[str]:
    """Whether the requests themselves were larger, or the same work took longer."""
    part = cause["part"]
    if part in ("prefill", "decode"):
        key, what = ("computed", "prompt tokens to compute") if part == "prefill" else ("output", "output tokens")
        slow, middle = term[f"slow_{key}_tokens"], term[f"middle_{key}_tokens"]
        if not slow or not middle:
            return []
        each = f"{duration(cause['slow_ns'] / slow)} each against {duration(cause['middle_ns'] / middle)}"
        return [f"{count(slow)} {what} against {count(middle)}, {each}"]
    if part == "preempted" and term["slow_preemptions"]:
        return [f"they were preempted {term['slow_preemptions']:.1f} times each"]
    return []


def _slowest(report: RequestsReport) -> list[str]:
    columns = ("frontend", "queue", "prefill", "interference", "decode", "preempted", "gap", "stream")
    rows = [
        [_short(row), duration(row["e2e_ns"]), *(_brief(row[f"{part}_ns"]) for part in columns)]
        for row in report.requests
    ]
    header = ["request", "E2E", "front", "queue", "prefill", "interf.", "decode", "preempt", "gap", "stream"]
    return [f"the slowest {len(rows)} (parts in ms)", *table(header, rows, drop=("preempt",))] if rows else []


def _short(row: dict[str, Any]) -> str:
    name = shown(row["client_request_id"] or row["request_id"], 24)
    status = shown(row["status"], 12)
    return name if status == "ok" else f"{name[: 24 - len(status) - 3]} ({status})"


def _brief(ns: int | None) -> str:
    return DASH if ns is None else "0" if ns == 0 else f"{ns / 1e6:,.1f}" if ns < 1e9 else f"{ns / 1e6:,.0f}"


def _one(row: dict[str, Any]) -> list[str]:
    if row["decode_ns"] is None:
        return []
    rows = [
        [
            part,
            _MEANING[part],
            duration(row[f"{part}_ns"]),
            percent(share(row[f"{part}_ns"], row["e2e_ns"])),
            duration(row[f"ttft_{part}_ns"]),
        ]
        for part in PARTS
    ]
    rows.append(["E2E", "", duration(row["e2e_ns"]), percent(1.0), duration(row["ttft_ns"])])
    lines = table(["part", "", "time", "share", "of TTFT"], rows, left=2)
    if row["recompute_ns"]:
        lines.append(
            f"  of its prefill, {duration(row['recompute_ns'])} in steps that computed again after a preemption"
        )
    if row["prefill_device_ns"] is not None or row["decode_device_ns"] is not None:
        lines.append(
            f"  device time in the recorded steps: prefill {duration(row['prefill_device_ns'])}, "
            f"decode {duration(row['decode_device_ns'])}"
        )
    return lines


def _unknown(report: RequestsReport) -> list[str]:
    return [line for why, number in report.unknown.items() for line in _reason(why, number)]


def _reason(why: str | None, number: int) -> list[str]:
    if why is None:
        return []
    what = "waiting for others not known" if why == "no decode-only step" else "parts not known"
    return [f"{what} for {count(number)} request{'s' if number != 1 else ''}: {_UNKNOWN[why]}"]
