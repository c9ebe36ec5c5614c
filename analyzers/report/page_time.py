"""Sections on device time: the budget, the roofline, the timeline, the phases and idleness."""

from __future__ import annotations

from typing import Any

from analyzers.idle_reading import HIDING
from analyzers.report.page_bar import budget_bar, part_name, style_of, swatch
from analyzers.report.page_html import (
    Cell, bullets, figure, figure_number, ns, number, paragraph, part, row_head, section, sql_note, table, text, words,
)  # fmt: skip
from analyzers.report.page_sql import sql_of
from analyzers.report.roofline_text import scaled
from analyzers.report.text import DASH, count, duration, percent, share
from analyzers.report_model import Report
from analyzers.report_timeline import BINS, EXACT, MOST_DETAIL
from traces.labels import CAVEATS

Rows = list[list[Cell | str]]
_MOST_CATEGORIES = 40


def budget_section(report: Report) -> str:
    """The bar and its parts; the window of every device as `summary` has it."""
    body = ""
    if report.budget is not None:
        budget, who = report.budget, {cause: owner for cause, (owner, _) in HIDING.items()}
        sql = sql_of("budget", report.run_id)
        rows: Rows = [
            [
                row_head(text(part_name(each)), swatch(*style_of(each, who))), ns(each.ns),
                figure_number(each.share, f"{each.tenths / 10:.1f} %"), number(each.n), words(each.why or "", 200),
            ]
            for each in budget.parts
        ]  # fmt: skip
        rows.append(['<th scope="row">window</th>', ns(budget.window_ns), figure_number(1.0, "100.0 %"), words(""), words("")])
        body = budget_bar(budget, who, sql) + table(
            "parts of the window (they sum to it); n: activities of busy parts, pieces of idle ones", ["part", "time", "share", "n", "note"], rows,
            sql=f"{sql}; {sql_of('idle', report.run_id)}", identity="budget-parts",
        )  # fmt: skip
    return section("budget", "Time budget", body + _devices(report), why=report.missing.get("budget"))


def _devices(report: Report) -> str:
    rows: Rows = []
    for i, item in enumerate(report.summary.devices):
        window = item["window_end_ns"] - item["window_start_ns"]
        cells: list[Cell | str] = [words(f"rank {item['rank']} device {item['device']}"), words(item["name"] or DASH, 50), ns(window)]
        for name in ("busy_ns", "idle_ns", "unrecorded_ns"):
            value = item[name]
            label = "withheld" if value is None else f"{duration(value)} ({percent(share(value, window))})"
            cells.append(figure_number(value, label, f"devices.{i}.{name}"))
        rows.append(cells)
    return table("time of the devices: window = busy + idle + unrecorded", ["", "device", "window", "busy", "idle", "unrecorded"], rows,
                 sql=sql_of("devices", report.run_id))  # fmt: skip


def roofline_section(report: Report) -> str:
    """FLOP/s against FLOP/byte, with what the roofs are and how much of the time they cover."""
    data = report.roofline
    if data is None:
        return section("roofline", "Roofline", "", why=report.missing.get("roofline"))
    roofs = [
        f"{roof.source} roof of {roof.device or 'the device'}: {scaled(roof.peak_flops, 'FLOP/s')}, {scaled(roof.peak_bandwidth, 'B/s')}, "
        f"ridge {roof.peak_flops / roof.peak_bandwidth:.3g} FLOP/byte" + ("; bounds come from this one" if roof.used else "; for comparison")
        for roof in data.roofs
    ]  # fmt: skip
    main = data.by_category
    lead = paragraph(f"Costs are known for {percent(main['coverage'])} of busy time. A point's height is its FLOP/s, its place to the right "
                     "its FLOP per byte; what lies far below the roof is not limited by it.")  # fmt: skip
    phases: Rows = [
        [
            words(row["phase"]), ns(row["busy_ns"]), figure_number(row["flops"], scaled(row["flops"], "FLOP")),
            figure_number(row["bytes"], scaled(row["bytes"], "B")), figure_number(row["intensity"], _ratio(row["intensity"])), words(row["side"] or DASH),
            part(row["mfu"]), part(row["mbu"]), part(row["mfu_wall"]), part(row["mbu_wall"]),
        ]
        for row in main["phases"]
    ]  # fmt: skip
    groups: Rows = [
        [
            words(row["category"] or "(none)"), number(row["n"]), ns(row["busy_ns"]), part(row["share"]), figure_number(row["flops_per_s"], scaled(row["flops_per_s"], "FLOP/s")),
            figure_number(row["bytes_per_s"], scaled(row["bytes_per_s"], "B/s")), figure_number(row["intensity"], _ratio(row["intensity"])),
            words(row["side"] or DASH), words(row["bound"] or ("impossible" if row["impossible"] else DASH)), part(row["roof_fraction"], digits=0), part(row["coverage"], digits=0),
        ]
        for row in main["rows"][:_MOST_CATEGORIES]
    ]  # fmt: skip
    sql = sql_of("kernels", report.run_id)
    drawn = any(trace for trace in (data.steps, [row for row in data.by_kernel["rows"] if row["intensity"] and row["flops_per_s"]]) if trace)
    chart = figure("roofline", "roofline: FLOP/s over arithmetic intensity") if drawn else paragraph("No point can be drawn: no cost is known.", "missing")
    body = lead + bullets(roofs) + chart + table(
        "by phase: share of the peaks used, over device time (MFU, MBU) and wall time", ["phase", "busy", "FLOP", "bytes", "FLOP/byte", "side", "MFU", "MBU", "MFU wall", "MBU wall"], phases, sql=sql,
    ) + table("by category", ["category", "n", "busy", "share", "FLOP/s", "bytes/s", "FLOP/byte", "side", "bound", "of the roof", "cost known"], groups, sql=sql)  # fmt: skip
    return section("roofline", "Roofline", body + bullets([f"Note: {hint}." for hint in main["hints"]]))


def timeline_section(report: Report) -> str:
    """Steps over time; many are drawn in bins until they are zoomed to."""
    line = report.timeline
    if line is None or not line.rows.height:
        why = report.missing.get("timeline") or "the steps of this recording have no times"
        return section("timeline", "Step timeline", "", why=why)
    total = line.rows.height
    notes = [f"{total:,} steps of rank {line.rank}" + (f" (of {line.ranks} ranks; `stepscope steps` has all)" if line.ranks > 1 else "") + "."]
    if not line.exact:
        notes.append(
            f"Drawn in up to {BINS} bins of equal time: medians with their range, and means. Zoom to {EXACT} steps or fewer to see each of them."
            if total <= MOST_DETAIL else f"Drawn in up to {BINS} bins of equal time; more than {MOST_DETAIL:,} steps are not kept in a page: `stepscope steps --csv`."
        )  # fmt: skip
    if line.unplaced:
        notes.append(f"{line.unplaced:,} steps have no time and are left out.")
    waited = sum(row["interference_ns"] or 0 for row in report.phases["kinds"])
    notes.append(f"Triangles are interference: time that decoding requests waited for a prefill in their step, {duration(waited)} in all." if waited
                 else "No interference is known: no step mixed a prefill with decodes, or it could not be told.")  # fmt: skip
    buttons = "".join(
        f'<button type="button" data-zoom="{action}">{label}</button>'
        for action, label in (("left", "← earlier"), ("right", "later →"), ("in", "zoom in"), ("out", "zoom out"), ("all", "all"))
    )
    body = paragraph(" ".join(notes)) + f'<div class="tools" role="group" aria-label="timeline">{buttons}</div>'
    body += figure("timeline", "steps over time: duration by kind, busy and idle, requests, KV cache") + sql_note(sql_of("steps", report.run_id))
    return section("timeline", "Step timeline", body)


def phases_section(report: Report) -> str:
    """Prefill against decode: tokens, time, cost per token, intervals between tokens; steps as `summary` has them."""
    data = report.phases
    busy = sum(row["busy_ns"] or 0 for row in data["totals"])
    totals: Rows = [
        [
            words(row["phase"]), ns(row["busy_ns"]), part(share(row["busy_ns"], busy)), number(row["tokens"]),
            ns(row["busy_ns"] / row["tokens"] if row["tokens"] else None), number(row["tokens_per_device_s"]), number(row["tokens_per_window_s"]),
        ]
        for row in data["totals"]
    ]  # fmt: skip
    kinds: Rows = [
        [
            words(row["kind"]), number(row["steps"]), ns(row["prefill_ns_per_token"]), ns(row["decode_ns_per_token"]),
            ns(row["split_low_ns"] if row["kind"] == "mixed" else None), ns(row["split_high_ns"] if row["kind"] == "mixed" else None),
            ns(row["interference_ns"]),
        ]
        for row in data["kinds"]
    ]  # fmt: skip
    itl: Rows = [
        [words(row["pass"] or "all"), words("with prefill" if row["with_prefill"] else "without"), number(row["n"]), *(ns(row[f"p{at}_ns"]) for at in (50, 90, 99))]
        for row in data["itl"]
    ]  # fmt: skip
    chart = figure("phases", "device time and cost per token by phase, intervals between tokens with and without prefill") if any(row["busy_ns"] for row in data["kinds"]) else ""
    sql = sql_of("step_kinds", report.run_id)
    body = chart + table("device time by phase", ["phase", "busy", "share", "tokens", "per token", "tokens/s of device", "tokens/s of window"], totals,
                         sql=sql_of("phases", report.run_id)) + _steps(report, sql)  # fmt: skip
    body += table("cost per token by step kind; the interval is that of prefill's part in mixed steps", ["kind", "steps (n)", "per prefill token", "per decode token", "interval from", "to", "interference"], kinds, sql=sql)
    body += table("time between two results of a decoding request (ITL, in the engine)", ["pass", "prefill in the step", "n", "p50", "p90", "p99"], itl, sql=sql_of("ledger", report.run_id))
    if data["totals"] and not data["itl"]:
        body += paragraph("ITL with and without prefill is not known: it needs the step ledger that `stepscope profile` writes.", "missing")
    body += bullets([f"Note: {row['steps']:,} steps: {CAVEATS.get(row['caveat'], row['caveat'])}." for row in data["caveats"]])
    return section("phases", "Prefill against decode", body, why=report.missing.get("phases"))


def _steps(report: Report, sql: str) -> str:
    rows: Rows = []
    for i, item in enumerate(report.summary.steps):
        cells: list[Cell | str] = [words(item["kind"]), number(item["steps"], f"steps.{i}.steps")]
        cells += [number(item[name], f"steps.{i}.{name}") for name in ("prefill_tokens", "decode_tokens", "recompute_tokens")]
        cells += [ns(item[name], f"steps.{i}.{name}") for name in ("busy_ns", "prefill_ns", "decode_ns", "other_ns", "p50_ns", "p90_ns", "p99_ns")]
        rows.append(cells)
    header = ["kind", "steps (n)", "prefill tokens", "decode tokens", "recomputed", "busy", "prefill", "decode", "no phase", "step p50", "p90", "p99"]
    return table("steps by kind", header, rows, sql=sql)


def idle_section(report: Report) -> str:
    """Idle time by cause and size, what would hide it, the longest pieces."""
    data = report.idle
    if data is None or not data.groups:
        why = report.missing.get("idle") or "no idle time was found between the recorded activities"
        return section("idle", "Idle time", "", why=why)
    sql = sql_of("idle", report.run_id)
    notes = [f"Shares are withheld: {why}" for why in dict.fromkeys(data.withheld.values())]
    causes: Rows = [
        [words(row["name"]), number(row["pieces"]), ns(row["ns"]), part(row["share"]), ns(row["p50_ns"]), ns(row["p99_ns"]), ns(row["max_ns"]),
         words(_remedy(data.hiding, row["name"]), 200)]
        for row in data.groups
    ]  # fmt: skip
    whole = sum(row["ns"] for row in data.sizes)
    sizes: Rows = [
        [words(f"{duration(row['low_ns'])} to {duration(row['high_ns'])}" if row["low_ns"] else "below 1 µs"), number(row["pieces"]), ns(row["ns"]), part(share(row["ns"], whole))]
        for row in data.sizes
    ]  # fmt: skip
    worst: Rows = [
        [ns(row["dur_ns"]), words(row["cause"] or "not analyzed"), ns(row["start_ns"]), words(row["before"] or "an end of the window", 60),
         words(row["after"] or "an end of the window", 60), words(row["detail"] or "", 160)]
        for row in data.worst
    ]  # fmt: skip
    body = bullets(notes) + figure("idle", "idle time by cause and by length of a piece")
    body += table("idle time by cause", ["cause", "pieces (n)", "time", "of window", "p50", "p99", "longest", "what would hide it"], causes, sql=sql)
    body += table("idle time by length", ["length", "pieces (n)", "time", "share"], sizes, sql=sql)
    body += table("the longest pieces, at their time in the window", ["length", "cause", "at", "after", "before", "evidence"], worst, sql=sql_of("gaps", report.run_id))
    return section("idle", "Idle time", body)


def _remedy(hiding: list[dict[str, Any]], cause: str) -> str:
    return next((str(row["remedy"]) for row in hiding if row["cause"] == cause), "")


def _ratio(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}" if value < 1000 else count(value)
