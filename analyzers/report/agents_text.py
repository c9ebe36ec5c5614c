"""The terminal form of `agents`."""

from __future__ import annotations

from typing import Any

from analyzers.agents_reading import AgentsReport
from analyzers.report.text import DASH, count, duration, percent, share, shown, table

_CAUSES = {
    "prefix_changed": ("the prefix changed", "keep what comes first byte for byte the same; put what changes last"),
    "evicted": ("evicted from the cache", "a larger KV cache, fewer sessions at once, or shorter tool waits"),
    "block_remainder": ("unfilled last block", "nothing to do: less than a block per turn"),
    "caching_off": ("prefix caching is off", "switch it on (vLLM: --enable-prefix-caching)"),
    "other_replica": ("computed on another replica", "route a session to the replica that has its prefix"),
    "cause_unknown": ("cause not known", "record with the step ledger, which tells the block size"),
}


def agents_lines(report: AgentsReport, *, by: str, limit: int) -> list[str]:
    """Verdict, what was lost and why, sessions or turns, growth."""
    rows = _turns(report, limit) if by == "turn" else _sessions(report, limit)
    sections = [_title(report), _pieces(report), _lost(report), rows, _growth(report), _notes(report)]
    lines: list[str] = []
    for section in sections:
        lines += [*section, ""] if section else []
    return lines[:-1]


def _title(report: AgentsReport) -> list[str]:
    total = report.total
    which = f"{shown(report.pass_name, 40)} pass" if report.pass_name else "all requests"
    lines = [
        (
            f"{which} of {shown(report.run_id, 40)}: {len(report.sessions)} sessions, {count(total['turns'])} turns, "
            f"{count(total['prompt_tokens'])} prompt tokens, hit ratio {percent(total['hit_ratio'])}"
        )
    ]
    avoidable = total["lost"] - total["block_remainder"]
    if report.healthy:
        lines.append("  healthy: nothing is lost but what fills no whole block of the cache"
                     if not avoidable else f"  healthy: only {percent(avoidable / total['prompt_tokens'])} of the prompts is lost "
                     "for a reason other than the block size")  # fmt: skip
    else:
        cost = "" if total["lost_device_ns"] is None else (
            f", {duration(total['lost_device_ns'])} of device time "
            f"({percent(share(total['lost_device_ns'], total['prefill_device_ns']))} of prefill)"
        )  # fmt: skip
        lines.append(f"  {count(total['lost'])} tokens were computed again ({percent(total['lost'] / total['prompt_tokens'])} "
                     f"of the prompts{cost})")  # fmt: skip
    return lines


def _pieces(report: AgentsReport) -> list[str]:
    total = report.total
    rows = []
    for name, tokens, time in (
        ("cached", total["cached"], None), ("fresh", total["fresh"], total["fresh_device_ns"]),
        ("re-sent output", total["resent_output"], total["resent_device_ns"]), ("lost", total["lost"], total["lost_device_ns"]),
    ):  # fmt: skip
        rows.append([name, count(tokens), percent(tokens / total["prompt_tokens"]), duration(time),
                     percent(share(time, total["prefill_device_ns"]))])  # fmt: skip
    return ["prompt tokens", *table(["piece", "tokens", "share", "device", "of prefill"], rows)]


def _lost(report: AgentsReport) -> list[str]:
    if not report.causes:
        return []
    lines = ["lost, by cause"]
    for row in report.causes:
        name, remedy = _CAUSES.get(row["cause"], (shown(row["cause"], 40), _CAUSES["cause_unknown"][1]))
        lines.append(f"  {name}: {count(row['tokens'])} tokens ({percent(row['prompt_share'])}) in {count(row['turns'])} turns, "
                     f"device {duration(row['device_ns'])}")  # fmt: skip
        if row["cause"] == "prefix_changed":
            where = f"token {count(row['divergence_token'])}" + (
                f", {shown(row['divergence_role'], 40)}" if row["divergence_role"] else ""
            )
            lines.append(
                f"    first different: mostly {where}" + (f"; {shown(row['detail'], 60)}" if row["detail"] else "")
            )
        elif row["detail"] and row["cause"] != "block_remainder":
            lines.append(f"    {shown(row['detail'], 80)}")
        lines.append(f"    → {remedy}")
    return lines


def _cells(row: dict[str, Any]) -> list[str]:
    lost = row["lost"]
    return [
        count(row["prompt_tokens"]), percent(None if row["cached"] is None else row["cached"] / row["prompt_tokens"], 0),
        count(row["fresh"]), count(row["resent_output"]), count(lost), duration(row["prefill_device_ns"]),
        duration(row["queue_ns"]), duration(row["prefill_ns"]), duration(row["decode_ns"]), duration(row["tool_ns"]),
    ]  # fmt: skip


_HEADER = ["prompt", "hit", "fresh", "re-sent", "lost", "device", "wait", "prefill", "decode", "tool"]


def _sessions(report: AgentsReport, limit: int) -> list[str]:
    rows = [[shown(row["session_id"], 18), count(row["turns"]), *_cells(row)] for row in report.sessions[:limit]]
    return [
        "sessions", *table(["session", "turns", *_HEADER], rows), *_more(len(report.sessions), limit, "sessions"),
    ]  # fmt: skip


def _turns(report: AgentsReport, limit: int) -> list[str]:
    rows = [[shown(row["session_id"], 18), count(row["turn"]), *_cells(row)] for row in report.turns[:limit]]
    return ["turns", *table(["session", "turn", *_HEADER], rows), *_more(len(report.turns), limit, "turns")]


def _more(total: int, limit: int, what: str) -> list[str]:
    return [f"  … and {total - limit} more {what}: --limit, or --json"] if total > limit else []


def _growth(report: AgentsReport) -> list[str]:
    if len(report.growth) < 2:
        return []
    first, last = report.growth[0], report.growth[-1]

    def grown(name: str, show: Any) -> str:
        return f"{show(first[name])} → {show(last[name])}"

    text = (
        f"from turn {first['turn']} to turn {last['turn']} (medians): prompt {grown('prompt_tokens', count)} tokens, "
        f"TTFT {grown('ttft_ns', duration)}, prefill {grown('prefill_device_ns', duration)} of device time"
    )
    return [text]


def _notes(report: AgentsReport) -> list[str]:
    notes = []
    if report.unaccounted:
        notes.append(f"note: {report.unaccounted} requests are left out: their prompts are not known")
    if report.unlocated:
        notes.append(f"note: in {report.unlocated} prompts messages were not located: what moved there counts as fresh")
    if report.total["prefill_device_ns"] is None:
        notes.append(f"note: device time is {DASH} where a turn was not recorded")
    return notes
