"""Agents' logs for a terminal and as JSON: counts, shares and times, never a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from analyzers.agentlog import AgentLog
from analyzers.agentlog_pieces import LOST, PIECES, SIZED, Cache
from analyzers.report.text import DASH, count, duration, percent, ratio, share, shown, table

_WORDS = {
    "caching_off": "no cache", "expired": "too old", "evicted": "evicted", "unexplained": "not reused, cause unknown",
    "block_remainder": "block remainder", "prefix_changed": "prefix changed", "compaction": "compaction",
}  # fmt: skip
_PROBLEMS_SHOWN = 5
_TURN_COLUMNS = (
    "order", "session", "file", "turn", "line", "start_ns", "prompt_tokens", "output_tokens", "recorded_cached_tokens",
    "tool_step", "tool_wait_ns", "api_ns", "token_source", "break_token", "break_role",
)  # fmt: skip


def agentlog_lines(found: AgentLog, *, by: str, limit: int, notes: Sequence[str] = ()) -> list[str]:
    """All tables, top to bottom."""
    lines = [*_head(found), "", *_totals(found)]
    lines += ["", *(_turns(found, limit) if by == "turn" else _sessions(found, limit))]
    return lines + _remarks(found, notes)


JSON_VERSION = 1


def agentlog_json(found: AgentLog, *, by: str, limit: int, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Everything, but no more than `limit` sessions (most lost first) and, if asked for, turns (the first)."""
    sessions = found.sessions.head(limit).drop(
        "_space", "_session", "told_turns", "told_prompt_tokens", "told_cached_tokens"
    )
    told = {
        "version": JSON_VERSION, "cache": asdict(found.cache), "block_tokens": list(found.block_tokens), "formats": found.formats,
        "files": found.files, "token_sources": found.token_sources, "totals": found.totals,
        "sessions": [_finite(row) for row in sessions.to_dicts()],
        "skipped_records": found.skipped, "repeated_records": found.repeated,
        "problems": [{"file": item.path.name, "line": item.line, "message": item.message} for item in found.problems],
        "notes": [*found.notes, *notes],
    }  # fmt: skip
    if by == "turn":
        told["turns"] = (
            None if found.turns is None else [_finite(row) for row in _turn_rows(found.turns.head(limit)).to_dicts()]
        )
    return told


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _turn_rows(turns: pl.DataFrame) -> pl.DataFrame:
    rest = [name for name in turns.columns if name not in _TURN_COLUMNS and not name.startswith("_")]
    return turns.select(*_TURN_COLUMNS, *rest)


def _head(found: AgentLog) -> list[str]:
    total = found.totals
    formats = ", ".join(f"{name} {number:,}" for name, number in found.formats.items())
    files = f"{found.files:,} file{'s' if found.files != 1 else ''}"
    sessions = f"{total['sessions']:,} session{'s' if total['sessions'] != 1 else ''}"
    return [
        f"{total['turns']:,} requests of {sessions} in {files} ({formats})",
        f"assumed cache: {_cache(found.cache, found.block_tokens)}",
    ]


def _cache(cache: Cache, blocks: Sequence[int]) -> str:
    words = f"{cache.tokens:,} tokens" if cache.kind == SIZED and cache.tokens else cache.kind
    if cache.ttl_ns is not None:
        words += f", unused for {duration(cache.ttl_ns)} is gone"
    return f"{words}, blocks of {' or '.join(f'{size:,}' for size in blocks)} tokens"


def _totals(found: AgentLog) -> list[str]:
    total = found.totals
    whole = total["prompt_tokens"]
    rows = [
        [_WORDS.get(name, name.replace("_", " ")), count(total[f"{name}_tokens"]), percent(total[f"{name}_tokens"] / whole, 2),
         *([duration(total[f"{name}_ns"])] if f"{name}_ns" in total else [])]
        for name in PIECES if total[f"{name}_tokens"]
    ]  # fmt: skip
    rows = [[("lost: " if name in _LOST_WORDS else "") + name, *rest] for name, *rest in rows]
    timed = "prefill_floor_ns" in total
    rows.append(["prompt", count(whole), percent(1.0, 2), *([duration(total["prefill_floor_ns"])] if timed else [])])
    lines = [
        "What the prompts are made of",
        *table(["", "tokens", "share", *(["prefill floor"] if timed else [])], rows),
    ]
    possible = "as recorded" if found.cache.kind == "recorded" else "possible under this cache"
    lines += ["", f"  hit ratio {percent(total['hit_ratio'], 2)} ({possible})", f"  {_recorded(total)}"]
    lines.append(
        f"  amplification {_times(total['amplification'])} (computed / fresh, after the first turn; "
        f"{_times(total['amplification_with_first'])} with it)"
    )
    lines.append(f"  {count(total['output_tokens'])} tokens of output" + _observed(total))
    return lines


_LOST_WORDS = frozenset(_WORDS[name] for name in LOST)


def _recorded(total: Mapping[str, Any]) -> str:
    if total["recorded_hit_ratio"] is None:
        return "the log does not tell what was reused"
    return (
        f"recorded {percent(total['recorded_hit_ratio'], 2)}, "
        f"{count(total['missed_tokens'])} tokens possible and not reused"
    )


def _observed(total: Mapping[str, Any]) -> str:
    if total["observation_to_output"] is None:
        return "; observation to output: the log does not tell which steps are a tool's"
    return (
        f"; observation to output, median of {total['observation_steps']:,} tool steps: "
        f"{total['observation_to_output']:.2f}"
    )


def _sessions(found: AgentLog, limit: int) -> list[str]:
    rows = found.sessions.head(limit).to_dicts()
    header = ["session", "turns", "prompt", "cached", "fresh", "re-sent", "lost", "output", "lost most by"]
    tokens = [
        [
            shown(row["session"], 22), count(row["turns"]), *(_short(row[f"{name}_tokens"]) for name in (
                "prompt", "cached", "fresh", "resent_output", "lost", "output")), _main_cause(row),
        ]
        for row in rows
    ]  # fmt: skip
    timed = "prefill_floor_ns" in found.sessions.columns
    second = ["session", "hit possible", "recorded", "missed", "amplif.", "obs/out", "tool time", "of wall"]
    shares = [
        [
            shown(row["session"], 22), percent(row["hit_ratio"]), percent(row["recorded_hit_ratio"]),
            _short(row["missed_tokens"]), _times(row["amplification"]), _two(row["observation_to_output"]),
            duration(row["tool_ns"]), percent(row["tool_share"]), *([duration(row["prefill_floor_ns"])] if timed else []),
        ]
        for row in rows
    ]  # fmt: skip
    more = found.sessions.height - len(rows)
    return [
        "Sessions, most lost first: tokens", *table(header, tokens), "",
        "Ratios and times", *table([*second, *(["prefill"] if timed else [])], shares),
        *([f"  and {more:,} more (--limit, or --json for all)"] if more > 0 else []),
    ]  # fmt: skip


def _turns(found: AgentLog, limit: int) -> list[str]:
    if found.turns is None:
        return ["Turns are kept for up to 200,000 requests; there are sessions and totals"]
    rows = found.turns.head(limit).to_dicts()
    header = ["session", "turn", "prompt", "cached", "fresh", "re-sent", "lost", "lost most by", "break at"]
    tokens = [
        [
            shown(row["session"], 16), str(row["turn"]), *(_short(row[f"{name}_tokens"]) for name in (
                "prompt", "cached", "fresh", "resent_output")), _short(sum(row[f"{name}_tokens"] for name in LOST)),
            _main_cause(row), _break(row),
        ]
        for row in rows
    ]  # fmt: skip
    timed = "fresh_ns" in found.turns.columns
    second = ["session", "turn", "output", "hit possible", "recorded", "tool time", "answered in"]
    beside = [
        [
            shown(row["session"], 16), str(row["turn"]), _short(row["output_tokens"]),
            percent(share(row["cached_tokens"], row["prompt_tokens"])),
            percent(share(row["recorded_cached_tokens"], row["prompt_tokens"])), duration(row["tool_wait_ns"]),
            duration(row["api_ns"]), *([duration(sum(row[f"{name}_ns"] for name in PIECES[1:]))] if timed else []),
        ]
        for row in rows
    ]  # fmt: skip
    more = found.turns.height - len(rows)
    return [
        "Turns in order: tokens", *table(header, tokens), "",
        "Ratios and times", *table([*second, *(["prefill"] if timed else [])], beside),
        *([f"  and {more:,} more (--limit, or --json for all)"] if more > 0 else []),
    ]  # fmt: skip


def _break(row: Mapping[str, Any]) -> str:
    if row["break_token"] is None:
        return DASH
    return _short(row["break_token"]) + (f" {row['break_role']}" if row["break_role"] else "")


def _main_cause(row: Mapping[str, Any]) -> str:
    name = max(LOST, key=lambda cause: row[f"{cause}_tokens"])
    return _WORDS[name].partition(",")[0] if row[f"{name}_tokens"] else DASH


def _short(tokens: int | None) -> str:
    """A count in six characters."""
    if tokens is None:
        return DASH
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if tokens >= size:
            return f"{tokens / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{tokens:,}"


def _times(value: float | None) -> str:
    """Next to nothing was fresh where it is larger than 1,000."""
    return ">1,000×" if value is not None and value > 1_000 else ratio(value)


def _two(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _remarks(found: AgentLog, notes: Sequence[str]) -> list[str]:
    lines = [f"note: {shown(note, 400)}" for note in (*found.notes, *notes)]
    if found.repeated:
        lines.append(f"note: {found.repeated:,} records repeat a request that is counted once")
    if found.skipped:
        lines.append(f"note: {found.skipped:,} records are none and left out, such as:")
        lines += [
            f"  {shown(item.path.name, 60)}:{item.line}: {shown(item.message, 200)}"
            for item in found.problems[:_PROBLEMS_SHOWN]
        ]
    return ["", *lines] if lines else []
