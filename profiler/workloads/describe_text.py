"""The terminal form of a description, and of the head of a plan: lines of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import polars as pl

from profiler.workloads.arrivals import Arrivals
from profiler.workloads.describe import Description, Rates, Spread
from profiler.workloads.prefixes import PrefixReuse
from traces.printable import printable

WIDTH = 100
_SPREAD_HEADER = ("", "n", "mean", "p1", "p10", "p50", "p90", "p99", "most")
_HEAD_HEADER = ("#", "arrival", "session", "turn", "prompt", "output", "prefix", "tool wait", "think")
_SESSION_CHARACTERS = 24


def description_lines(found: Description) -> list[str]:
    """A description as a table."""
    lines = [*_wrapped(printable(found.spec)), ""]
    sessions = "no sessions" if found.sessions is None else f"{found.sessions:,} sessions"
    loop = "closed loop: a turn waits for the one before" if found.closed else "open loop: requests at their times"
    lines += [f"{found.requests:,} requests, {sessions}; {loop}", ""]
    lines += _rate_lines(found.rates, closed=found.closed, why=found.unknown.get("rates"))
    rows = [("prompt tokens", found.prompt_tokens, False), ("output tokens", found.output_tokens, False),
            ("turns of a session", found.turns, False), ("tool waits", found.tool_waits_ns, True),
            ("think times", found.think_times_ns, True)]  # fmt: skip
    if found.rates is not None:
        rows.insert(0, ("session starts apart" if found.closed else "arrivals apart", found.rates.gaps_ns, True))
    lines += ["", *_table(_SPREAD_HEADER, [_spread(*row) for row in rows if row[1] is not None])]
    lines += ["", *_prefix_lines(found.prefix, why=found.unknown.get("prefix"))]
    return lines + _notes(found.notes)


def head_lines(arrivals: Arrivals, *, spec: str, limit: int) -> list[str]:
    """The first requests of a plan."""
    rows = [_head_row(row) for row in arrivals.frame.head(limit).iter_rows(named=True)]
    lines = [*_wrapped(printable(spec)), "", *_table(_HEAD_HEADER, rows)]
    more = arrivals.frame.height - len(rows)
    if more > 0:
        lines.append(f"… and {more:,} more; --describe says what they are like")
    return lines + _notes(arrivals.notes)


def _head_row(row: dict[str, Any]) -> tuple[str, ...]:
    session = row["session_id"]
    shared = row["prefix_tokens"]
    shown = "unknown" if shared is None else f"{shared:,}"
    if row["hash_ids"] is not None:
        shown = f"{len(row['hash_ids']):,} blocks"
    return (
        str(row["index"]), "after turn" if row["arrival_ns"] is None else duration(row["arrival_ns"]),
        "-" if session is None else printable(session)[:_SESSION_CHARACTERS], "-" if row["turn"] is None else str(row["turn"]),
        f"{row['input_tokens']:,}", f"{row['output_tokens']:,}", shown,
        "-" if row["tool_wait_ns"] is None else duration(row["tool_wait_ns"]),
        "-" if row["think_ns"] is None else duration(row["think_ns"]),
    )  # fmt: skip


def _rate_lines(rates: Rates | None, *, closed: bool, why: str | None) -> list[str]:
    if rates is None:
        return [f"rates: not given, {why}"]
    of = " of first turns" if closed else ""
    rate = f"{rates.mean_per_s:.2f} per second in the mean, {rates.peak_per_s:,} in the busiest"
    empty = f"seconds without an arrival: {rates.empty_share * 100:.1f} % of {rates.seconds:,}"
    return [
        f"arrivals{of}: {rates.n:,} over {duration(rates.span_ns)}; {rate}",
        f"{empty}; dispersion of counts per second: {rates.dispersion:.1f} (Poisson: 1)",
    ]


def _prefix_lines(prefix: PrefixReuse, *, why: str | None) -> list[str]:
    if prefix.by is None or prefix.infinite_tokens is None:
        return [f"reusable prefixes: unknown, {why}"]
    infinite = (
        f"{_share(prefix.infinite_tokens, prefix.known_tokens)} ({prefix.infinite_tokens:,} of {prefix.known_tokens:,})"
    )
    lines = [
        f"prompt tokens that an earlier prompt had, known by {prefix.by}:",
        f"  reusable with an infinite cache: {infinite}",
    ]
    if prefix.cached_tokens is not None:
        lines.append(
            f"  reusable with a cache of {prefix.cache_tokens:,} tokens: {_share(prefix.cached_tokens, prefix.known_tokens)} "
            f"({prefix.cached_tokens:,})"
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole * 100:.1f} %" if whole else "none"


def _spread(label: str, values: Spread | None, is_time: bool) -> tuple[str, ...]:
    assert values is not None
    numbers: tuple[float, ...] = (values.mean, values.p1, values.p10, values.p50, values.p90, values.p99, values.most)
    return (label, f"{values.n:,}", *((duration(int(value)) if is_time else f"{value:,.0f}") for value in numbers))


def _notes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    return ["", *(line for note in notes for line in _wrapped(f"note: {printable(note)}"))]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ") or [""]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = pl.DataFrame(
        {str(place): [len(row[place]) for row in (header, *rows)] for place in range(len(header))}
    ).max().row(0)  # fmt: skip
    return ["  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                      for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in (header, *rows)]  # fmt: skip


def duration(ns: int) -> str:
    """A time with three figures or so, in the unit that suits it."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            value = ns / size
            return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{ns} ns" if ns else "0 s"
