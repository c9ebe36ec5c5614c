"""Sections on the load: energy, and agent sessions."""

from __future__ import annotations

from typing import Any

from analyzers.comparison.sides import RECORDED
from analyzers.report.energy_parts_text import joules, watts
from analyzers.report.figures_load import MOST_TURNS
from analyzers.report.page_html import (
    Cell,
    figure,
    figure_number,
    left_out,
    ns,
    number,
    paragraph,
    part,
    section,
    table,
    words,
)
from analyzers.report.page_sql import sql_of
from analyzers.report.text import percent
from analyzers.report_model import Report

Rows = list[list[Cell | str]]
_STATES = {
    "active": "active",
    "execution_idle": "execution-idle",
    "deep_idle": "deep idle (no program)",
    "unknown": "unknown",
    "unsampled": "between samples",
}
_MOST_SESSIONS = 40


def energy_section(report: Report) -> str:
    """Joules by state, phase and step kind; execution-idle."""
    data = report.energy
    if data is None or not data.devices:
        return section("energy", "Energy and execution-idle", "", why=report.missing.get("energy"))
    states = _energy_states(data)
    intervals = _energy_intervals(data)
    parts = _energy_parts(data)
    kinds = _energy_kinds(data)
    tokens = _energy_tokens(data)
    sql = sql_of("telemetry", report.run_id)
    whole = paragraph(
        f"Energy of all sampled devices: {joules(data.energy_j)}."
        if data.energy_j is not None
        else "No joules are known: " + data.withheld.get("energy", "no power was sampled") + "."
    )
    body = whole + (
        figure("energy", "energy by phase and cause of idleness") if any(row["energy_j"] for row in data.parts) else ""
    )
    body += table(
        "by state, second by second (a second of execution-idle: a program is resident, every activity signal is below 5 %)",
        ["state", "time", "of time", "energy", "of energy", "mean power"],
        states,
        sql=sql,
    )
    body += table(
        "execution-idle, as a share of execution-idle and active, by the shortest interval that counts",
        ["shortest", "intervals (n)", "time", "of time", "energy", "of energy"],
        intervals,
        sql=sql_of("execution_idle", report.run_id),
    )
    body += table(
        "what the energy went to (sums to the whole)", ["part", "cause", "time", "energy", "share"], parts, sql=sql
    )
    body += table(
        "by step kind",
        ["kind", "steps (n)", "device time", "energy", "prefill", "decode"],
        kinds,
        sql=sql_of("steps", report.run_id),
    )
    body += table("per million tokens", ["energy of", "over", "tokens (n)", "energy", "per million"], tokens, sql=sql)
    return section("energy", "Energy and execution-idle", body)


def _energy_tokens(data: Any) -> Rows:
    return [
        [
            words(row["what"]),
            words(row["of"]),
            number(row["tokens"]),
            _joule(row["energy_j"]),
            _joule(row["j_per_million"]),
        ]
        for row in data.tokens
    ]


def _energy_kinds(data: Any) -> Rows:
    return [
        [
            words(row["kind"]),
            number(row["covered"]),
            ns(row["busy_ns"]),
            _joule(row["energy_j"]),
            _joule(row["prefill_j"]),
            _joule(row["decode_j"]),
        ]
        for row in data.kinds
        if row["covered"]
    ]


def _energy_parts(data: Any) -> Rows:
    return [
        [words(row["part"]), words(row["cause"] or ""), ns(row["time_ns"]), _joule(row["energy_j"]), part(row["share"])]
        for row in data.parts
    ]


def _energy_intervals(data: Any) -> Rows:
    return [
        [
            words("none" if not row["min_duration_s"] else f"{row['min_duration_s']:g} s"),
            number(row["n"]),
            ns(row["time_ns"]),
            part(row["time_share"]),
            _joule(row["energy_j"]),
            part(row["energy_share"]),
        ]
        for row in data.execution_idle
    ]


def _energy_states(data: Any) -> Rows:
    return [
        [
            words(_STATES.get(row["state"], row["state"])),
            ns(row["time_ns"]),
            part(row["time_share"]),
            _joule(row["energy_j"]),
            part(row["energy_share"]),
            figure_number(row["power_w"], watts(row["power_w"])),
        ]
        for row in data.states
        if row["min_duration_s"] == 0 and row["time_ns"]
    ]


def _joule(value: float | None) -> Cell:
    return figure_number(value, joules(value))


def agents_section(report: Report) -> str:
    """What every turn read again, and how its latency grew."""
    data = report.agents
    if data is None:
        return section("agents", "Agent sessions", "", why=report.missing.get("agents"))
    total = data.total
    lead = (
        f"{len(data.sessions):,} sessions with {total['turns']:,} turns: "
        f"{percent(total['hit_ratio'])} of {total['prompt_tokens']:,} prompt tokens came from the cache, "
        f"{total['lost']:,} tokens were computed again though they had been computed before."
    )
    lead += _agents_pass(data.pass_name)
    lead += " Nothing is lost but what fills no whole block of the cache." if data.healthy else ""
    causes = _agents_causes(data)
    sessions = _agents_sessions(data)
    growth = _agents_growth(data)
    header = [
        "session",
        "turns (n)",
        "prompt",
        "cached",
        "fresh",
        "re-sent",
        "lost",
        "hit ratio",
        "prefill device",
        "wait",
        "prefill",
        "decode",
        "tool",
    ]
    sql = sql_of("reuse", report.run_id)
    body = paragraph(lead) + figure("agents", "prompt tokens of every turn by piece, and its time to first token")
    body += left_out(sum(1 for row in data.turns if row["accounted"]), MOST_TURNS, "turns drawn")
    body += table(
        "tokens lost, by cause",
        ["cause", "tokens", "of prompts", "turns (n)", "device time", "detail"],
        causes,
        sql=sql,
    )
    body += table(
        "sessions; wait: sent to first scheduled, on the way and in the queue",
        header,
        sessions,
        sql=sql_of("turns", report.run_id),
    ) + left_out(len(data.sessions), _MOST_SESSIONS, "sessions listed")
    body += table(
        "growth by turn (medians)",
        ["turn", "n", "prompt tokens", "KV tokens", "TTFT", "prefill device"],
        growth,
        sql=sql_of("growth", report.run_id),
    )
    return section("agents", "Agent sessions", body)


def _agents_pass(name: str | None) -> str:
    """Which pass is told of; times of the recorded one are not those of the latency above."""
    if name is None:
        return ""
    slower = " Recording slowed it, so its times are longer than those of the control pass." if name == RECORDED else ""
    return f" This is the {name} pass.{slower}"


def _agents_growth(data: Any) -> Rows:
    return [
        [
            number(row["turn"]),
            number(row["n"]),
            number(row["prompt_tokens"]),
            number(row["kv_tokens"]),
            ns(row["ttft_ns"]),
            ns(row["prefill_device_ns"]),
        ]
        for row in data.growth
    ]


def _agents_sessions(data: Any) -> Rows:
    return [
        [
            words(row["session_id"], 40),
            *(number(row[name]) for name in ("turns", "prompt_tokens", "cached", "fresh", "resent_output", "lost")),
            part(row["hit_ratio"]),
            *(ns(row[name]) for name in ("prefill_device_ns", "queue_ns", "prefill_ns", "decode_ns", "tool_ns")),
        ]
        for row in data.sessions[:_MOST_SESSIONS]
    ]


def _agents_causes(data: Any) -> Rows:
    return [
        [
            words(row["cause"]),
            number(row["tokens"]),
            part(row["prompt_share"]),
            number(row["turns"]),
            ns(row["device_ns"]),
            words(row["detail"] or "", 120),
        ]
        for row in data.causes
    ]
