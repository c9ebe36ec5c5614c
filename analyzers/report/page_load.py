"""Sections on the load: energy, agent sessions, requests, and kernels as what the load ran."""

from __future__ import annotations

from analyzers.report.energy_parts_text import joules, watts
from analyzers.report.figures_load import MOST_TURNS, MOST_WATERFALL
from analyzers.report.page_html import Cell, figure, figure_number, ns, number, paragraph, part, section, table, text, words
from analyzers.report.page_sql import sql_of
from analyzers.report.roofline_text import scaled
from analyzers.report.text import DASH, percent, share
from analyzers.report_model import MOST_KERNELS, Report
from analyzers.requests import PARTS

Rows = list[list[Cell | str]]
_STATES = {"active": "active", "execution_idle": "execution-idle", "deep_idle": "deep idle (no program)", "unknown": "unknown", "unsampled": "between samples"}
_MOST_SESSIONS = 40


def energy_section(report: Report) -> str:
    """Joules by state, phase and step kind; execution-idle."""
    data = report.energy
    if data is None or not data.devices:
        return section("energy", "Energy and execution-idle", "", why=report.missing.get("energy"))
    states: Rows = [
        [words(_STATES.get(row["state"], row["state"])), ns(row["time_ns"]), part(row["time_share"]), _joule(row["energy_j"]), part(row["energy_share"]),
         figure_number(row["power_w"], watts(row["power_w"]))]
        for row in data.states if row["min_duration_s"] == 0 and row["time_ns"]
    ]  # fmt: skip
    intervals: Rows = [
        [words("none" if not row["min_duration_s"] else f"{row['min_duration_s']:g} s"), number(row["n"]), ns(row["time_ns"]), part(row["time_share"]), _joule(row["energy_j"]), part(row["energy_share"])]
        for row in data.execution_idle
    ]  # fmt: skip
    parts: Rows = [[words(row["part"]), words(row["cause"] or ""), ns(row["time_ns"]), _joule(row["energy_j"]), part(row["share"])] for row in data.parts]
    kinds: Rows = [
        [words(row["kind"]), number(row["covered"]), ns(row["busy_ns"]), _joule(row["energy_j"]), _joule(row["prefill_j"]), _joule(row["decode_j"])]
        for row in data.kinds if row["covered"]
    ]  # fmt: skip
    tokens: Rows = [[words(row["what"]), words(row["of"]), number(row["tokens"]), _joule(row["energy_j"]), _joule(row["j_per_million"])] for row in data.tokens]
    sql = sql_of("telemetry", report.run_id)
    whole = paragraph(f"Energy of all sampled devices: {joules(data.energy_j)}." if data.energy_j is not None else "No joules are known: " + data.withheld.get("energy", "no power was sampled") + ".")
    body = whole + (figure("energy", "energy by phase and cause of idleness") if any(row["energy_j"] for row in data.parts) else "")
    body += table("by state, second by second (a second of execution-idle: a program is resident, every activity signal is below 5 %)", ["state", "time", "of time", "energy", "of energy", "mean power"], states, sql=sql)
    body += table("execution-idle, as a share of execution-idle and active, by the shortest interval that counts", ["shortest", "intervals (n)", "time", "of time", "energy", "of energy"], intervals, sql=sql_of("execution_idle", report.run_id))
    body += table("what the energy went to (sums to the whole)", ["part", "cause", "time", "energy", "share"], parts, sql=sql)
    body += table("by step kind", ["kind", "steps (n)", "device time", "energy", "prefill", "decode"], kinds, sql=sql_of("steps", report.run_id))
    body += table("per million tokens", ["energy of", "over", "tokens (n)", "energy", "per million"], tokens, sql=sql)
    return section("energy", "Energy and execution-idle", body)


def _joule(value: float | None) -> Cell:
    return figure_number(value, joules(value))


def agents_section(report: Report) -> str:
    """What every turn read again, and how its latency grew."""
    data = report.agents
    if data is None:
        return section("agents", "Agent sessions", "", why=report.missing.get("agents"))
    total = data.total
    lead = (
        f"{len(data.sessions):,} sessions with {total['turns']:,} turns: {percent(total['hit_ratio'])} of {total['prompt_tokens']:,} prompt tokens came from the cache, "
        f"{total['lost']:,} tokens were computed again though they had been computed before."
    )  # fmt: skip
    lead += " Nothing is lost but what fills no whole block of the cache." if data.healthy else ""
    causes: Rows = [[words(row["cause"]), number(row["tokens"]), part(row["prompt_share"]), number(row["turns"]), ns(row["device_ns"]), words(row["detail"] or "", 120)] for row in data.causes]
    sessions: Rows = [
        [words(row["session_id"], 40), *(number(row[name]) for name in ("turns", "prompt_tokens", "cached", "fresh", "resent_output", "lost")), part(row["hit_ratio"]),
         *(ns(row[name]) for name in ("prefill_device_ns", "queue_ns", "prefill_ns", "decode_ns", "tool_ns"))]
        for row in data.sessions[:_MOST_SESSIONS]
    ]  # fmt: skip
    growth: Rows = [
        [number(row["turn"]), number(row["n"]), number(row["prompt_tokens"]), number(row["kv_tokens"]), ns(row["ttft_ns"]), ns(row["prefill_device_ns"])] for row in data.growth
    ]
    header = ["session", "turns (n)", "prompt", "cached", "fresh", "re-sent", "lost", "hit ratio", "prefill device", "queue", "prefill", "decode", "tool"]
    sql = sql_of("reuse", report.run_id)
    body = paragraph(lead) + figure("agents", "prompt tokens of every turn by piece, and its time to first token")
    body += _left_out(sum(1 for row in data.turns if row["accounted"]), MOST_TURNS, "turns drawn")
    body += table("tokens lost, by cause", ["cause", "tokens", "of prompts", "turns (n)", "device time", "detail"], causes, sql=sql)
    body += table("sessions", header, sessions, sql=sql_of("turns", report.run_id)) + _left_out(len(data.sessions), _MOST_SESSIONS, "sessions listed")
    body += table("growth by turn (medians)", ["turn", "n", "prompt tokens", "KV tokens", "TTFT", "prefill device"], growth, sql=sql_of("requests", report.run_id))
    return section("agents", "Agent sessions", body)


def _left_out(total: int, limit: int, what: str) -> str:
    return paragraph(f"{limit:,} of {total:,} {what}; --json of the command has all.") if total > limit else ""


def requests_section(report: Report) -> str:
    """Latency, passes, the waterfall, and the slowest requests with their parts."""
    data, summary = report.requests, report.summary
    if data is None:
        return section("requests", "Requests", "", why=report.missing.get("requests"))
    latency: Rows = [
        [words(row["pass"] or "all"), words(row["term"].upper() if row["term"] != "queue" else "queue"), number(row["n"], f"latency.{i}.n"), *(ns(row[f"p{at}_ns"], f"latency.{i}.p{at}_ns") for at in (50, 90, 99))]
        for i, row in enumerate(summary.latency)
    ]  # fmt: skip
    counts = ("requests", "ok", "failed", "sessions", "prompt_tokens", "cached_tokens", "output_tokens")
    passes: Rows = [
        [words(row["pass"] or "all"), *(number(row[name], f"requests.{i}.{name}") for name in counts), part(row["hit_ratio"], f"requests.{i}.hit_ratio"),
         figure_number(row["output_tokens_per_s"], DASH if row["output_tokens_per_s"] is None else f"{row['output_tokens_per_s']:.1f}", f"requests.{i}.output_tokens_per_s"),
         number(row["preemptions"], f"requests.{i}.preemptions"), ns(row["lateness_p99_ns"], f"requests.{i}.lateness_p99_ns")]
        for i, row in enumerate(summary.requests)
    ]  # fmt: skip
    slowest: Rows = [
        [words(row["client_request_id"] or row["request_id"], 40), words(row["status"] or DASH), number(row["prompt_tokens"]), number(row["output_tokens"]), ns(row["ttft_ns"]), ns(row["tpot_ns"]), ns(row["e2e_ns"]),
         *(ns(row[f"{name}_ns"]) for name in PARTS)]
        for row in data.requests
    ]  # fmt: skip
    sql, rows = sql_of("requests", report.run_id), report.request_rows
    shown = f"{data.pass_name} pass" if data.pass_name else "all requests"
    body = paragraph(f"{rows.height:,} requests ({shown}). Bars are wall time: waiting, to the first token, to the last.")
    body += _left_out(rows.height, MOST_WATERFALL, "requests drawn at most, evenly chosen")
    body += figure("requests", "requests over time: waiting, to the first token, to the last token")
    if rows.height and (rows["ttft_ns"].count() or rows["tpot_ns"].count()):
        body += figure("latency", "share of requests at or below a TTFT and a TPOT")
    body += table("latency at the client", ["pass", "term", "n", "p50", "p90", "p99"], latency, sql=f"{sql}; {sql_of('tokens', report.run_id)}")
    body += table("passes", ["pass", "requests (n)", "ok", "failed", "sessions", "prompt tokens", "cached", "output tokens", "hit ratio", "output tokens/s", "preemptions", "sent late p99"], passes, sql=sql)
    body += table("the slowest, with the parts of their wall time", ["request", "status", "prompt", "output", "TTFT", "TPOT", "E2E", *PARTS], slowest, sql=sql)
    return section("requests", "Requests", body)


def kernels_section(report: Report) -> str:
    """Categories as `summary` has them; every kernel name, to sort and search."""
    busy = sum(row["busy_ns"] or 0 for row in report.summary.categories)
    categories: Rows = [
        [words(row["category"] or "not analyzed"), number(row["activities"], f"categories.{i}.activities"), ns(row["busy_ns"], f"categories.{i}.busy_ns"), part(share(row["busy_ns"], busy))]
        for i, row in enumerate(report.summary.categories)
    ]  # fmt: skip
    rows: Rows = [
        [
            words(row["name"] if row["name"] is not None else "(no name)", 110), words(row["category"] or ""), number(row["activities"]), ns(row["busy_ns"]), part(row["share"]),
            ns(row["prefill_ns"]), ns(row["decode_ns"]), ns(row["p50_ns"]), ns(row["p99_ns"]), words(row["bound"] or DASH), part(row["roof_fraction"], digits=0),
            figure_number(row["flops_per_s"], scaled(row["flops_per_s"], "FLOP/s")),
        ]
        for row in report.kernels
    ]  # fmt: skip
    search = (
        f'<p class="search"><label for="kernel-search">Search kernels</label> <input id="kernel-search" type="search" autocomplete="off" data-search="kernels-table"> '
        f'<output for="kernel-search" id="kernel-count">{len(rows):,} of {len(rows):,} rows</output></p>'
    ) if rows else ""  # fmt: skip
    header = ["kernel", "category", "n", "busy", "share", "prefill", "decode", "p50", "p99", "bound", "of the roof", "FLOP/s"]
    sql = sql_of("kernels", report.run_id)
    body = table("device time by category", ["category", "activities (n)", "busy", "share"], categories, sql=sql_of("categories", report.run_id))
    body += search + table(f"kernels by name, the {text(f'{MOST_KERNELS:,}')} with the most time", header, rows, sql=sql, classes="sortable", identity="kernels-table")
    return section("kernels", "Kernels", body, why=report.missing.get("kernels"))
