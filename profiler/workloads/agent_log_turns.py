"""Which requests of an agent's log belong together: sessions, turns, waits, and who started whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from profiler.workloads.arrivals import bounded
from traces.agentlogs.base import Batch, Reading, Units
from traces.agentlogs.measure import RECORDED, Measure
from traces.agentlogs.registry import read_agent_logs
from traces.errors import UnreadableInput, UsageProblem

Ints = npt.NDArray[np.int64]

_SHARED_NAMES = ("claude-code", "codex")  # formats whose session ids mean the same in every file
EPOCH_FROM_NS = 10**18  # ns: a clock beyond is the epoch's, not the log's own
_PROBLEMS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The requests of all files. `frame`: REQUEST_COLUMNS; `batch` and `row` in `units`; `place`, where the session's
    name is known; `block`, tokens of a whole unit, NULL without."""

    frame: pl.DataFrame
    units: list[Units | None]  # by batch
    formats: dict[str, int]  # requests
    notes: tuple[str, ...]
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The requests to be sent. `frame` has Log.frame's columns, and: `number` of the session from 0 in order of
    appearance; `parent`, the number of the session that started it, NULL; `turn`, from 0; `tool_wait_after_ns` and
    `think_after_ns`, NULL unknown. `names` and `parents` (of sessions) and `after` (rows) have one entry per row."""

    frame: pl.DataFrame
    names: list[str]
    parents: list[str | None]
    after: list[tuple[int, ...]]
    notes: tuple[str, ...]


def read_log(path: Path, *, name: str | None, tokenizer: Path | None, bad_rows: str, first: int) -> Log:
    """The log at `path`, or its first so many requests. Raises UsageProblem where it is too large or an option does not
    fit; UnreadableInput where it holds no request."""
    reading = Reading(measure=Measure(tokenizer), bad_rows=bad_rows)
    parts: list[pl.DataFrame] = []
    units: list[Units | None] = []
    formats: dict[str, int] = {}
    height = 0
    for batch in read_agent_logs([str(path)], reading, name=name):
        if batch.requests.height:
            parts.append(_placed(batch, len(units)))
            units.append(batch.units)
            height += batch.requests.height
            formats[batch.format] = formats.get(batch.format, 0) + batch.requests.height
        bounded("agent", min(height, first) if first else height)
        if first and height >= first:
            break
    if not parts:
        problem = reading.problems[0] if reading.problems else None
        raise UnreadableInput(
            f"{path} holds no request with token counts",
            hint=f"line {problem.line}: {problem.message}" if problem else "give a log of a model's answers",
        )
    frame = pl.concat(parts)
    frame = _in_time(frame.head(first) if first else frame)
    return Log(frame=frame, units=units, formats=formats, notes=_log_notes(reading, frame), reading=reading)


def _placed(batch: Batch, number: int) -> pl.DataFrame:
    place = "" if batch.format in _SHARED_NAMES else str(batch.path)
    session = pl.col("session") if batch.units is not None else pl.col("session").fill_null("unnamed")
    return batch.requests.with_columns(
        session=session, place=pl.lit(place), batch=pl.lit(number, dtype=pl.Int64),
        row=pl.int_range(pl.len(), dtype=pl.Int64), block=pl.lit(batch.block_tokens, dtype=pl.Int64),
        shown=pl.lit(batch.units is not None),
    )  # fmt: skip


def _in_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Logs with lengths only in order of time if all times are of one clock, as a session may lie in several files."""
    shown, lengths = frame.filter(pl.col("shown")), frame.filter(~pl.col("shown"))
    starts = lengths["start_ns"]
    if lengths.height and starts.null_count() == 0 and starts.to_numpy().min() >= EPOCH_FROM_NS:
        lengths = lengths.sort("start_ns", maintain_order=True)
    return pl.concat([shown, lengths])


def _log_notes(reading: Reading, frame: pl.DataFrame) -> tuple[str, ...]:
    notes = list(reading.notes)
    if reading.skipped:
        listed = "; ".join(f"line {item.line}: {item.message}" for item in reading.problems[:_PROBLEMS_SHOWN])
        more = f"; and {reading.skipped - _PROBLEMS_SHOWN:,} more" if reading.skipped > _PROBLEMS_SHOWN else ""
        notes.append(f"{reading.skipped:,} records are no requests and were skipped: {listed}{more}")
    estimated = frame.filter(pl.col("token_source") != RECORDED)["token_source"]
    if len(estimated):
        how = "characters / 4, an estimate" if (estimated == "estimate").all() else "the given tokenizer"
        notes.append(f"tokens of {len(estimated):,} requests are not recorded: counted by {how}")
    return tuple(notes)


def turns_of(log: Log, *, sessions: int, turns: int, max_wait_ns: int) -> Turns:
    """The turns to be sent, at most `sessions` with their sub-agents and `turns` of each (0: all)."""
    frame = _with_waits(_numbered(log))
    parents = _parents(frame)
    frame = frame.with_columns(
        parent=pl.col("number").replace_strict(parents, default=None, return_dtype=pl.Int64)
        if parents else pl.lit(None, dtype=pl.Int64)
    )  # fmt: skip
    started = _started(frame)
    notes: list[str] = []
    kept = _kept(frame, started, sessions=sessions, turns=turns, notes=notes)
    frame = _bounded_waits(frame.filter(pl.Series(kept)), max_wait_ns, notes)
    if frame.is_empty():
        raise UsageProblem("no request of the log is left", hint="ask for more sessions or turns")
    untimed = sum(number in started and not started[number].timed for number in frame["number"].unique().to_list())
    if untimed:
        notes.append(f"the log does not say when {untimed:,} sub-agents began: they follow their parents' first turns")
    names = _names(frame)
    return Turns(
        frame=frame, names=[names[number] for number in frame["number"].to_list()],
        parents=[None if parent is None else names[parent] for parent in frame["parent"].to_list()],
        after=_after(frame, started), notes=tuple(notes),
    )  # fmt: skip


def _numbered(log: Log) -> pl.DataFrame:
    frame = log.frame
    found: dict[tuple[object, object], int] = {}
    tails: dict[int, int] = {}
    numbers: list[int] = []
    count = 0
    for place, session, batch, row, block, total in frame.select(
        "place", "session", "batch", "row", "block", "input_tokens"
    ).iter_rows():
        units = log.units[batch]
        if session is None and units is not None:
            chain = units.chain[units.offsets[row] : units.offsets[row + 1]]
            number = _continued(
                tails, chain.tolist(), count, len(chain) if not block else min(len(chain), total // block)
            )
        else:
            number = found.setdefault((place, session), count)
        count = max(count, number + 1)
        numbers.append(number)
    numbered = frame.with_columns(number=pl.Series(numbers, dtype=pl.Int64))
    return numbered.with_columns(turn=pl.int_range(pl.len(), dtype=pl.Int64).over("number"))


def _continued(tails: dict[int, int], chain: list[int], count: int, whole: int) -> int:
    """The session whose newest prompt, to its last whole unit, this prompt begins with; the longest such, else a new
    one, `count`."""
    number = count
    for name in reversed(chain):
        if name in tails:
            number = tails.pop(name)
            break
    if whole:
        tails[chain[whole - 1]] = number
    return number


def _with_waits(frame: pl.DataFrame) -> pl.DataFrame:
    """What stands before a request in the log stands behind a turn in a plan."""
    following = {name: pl.col(name).shift(-1).over("number") for name in ("start_ns", "tool_step", "tool_wait_ns")}
    gap = following["start_ns"] - pl.col("start_ns") - pl.col("api_ns")
    frame = frame.with_columns(
        gap=pl.when(gap >= 0).then(gap), tool_next=following["tool_step"], waited=following["tool_wait_ns"],
        last=pl.col("turn") == pl.col("turn").max().over("number"),
    )  # fmt: skip
    by_tool = pl.col("tool_next").fill_null(pl.col("waited").is_not_null())
    return frame.with_columns(
        tool_wait_after_ns=pl.when(~pl.col("last") & by_tool).then(pl.coalesce("waited", "gap")),
        think_after_ns=pl.when(~pl.col("last") & ~by_tool).then("gap"),
    )  # fmt: skip


def _bounded_waits(frame: pl.DataFrame, max_wait_ns: int, notes: list[str]) -> pl.DataFrame:
    """Waits as far as they are known and wanted; what is not is said. A last turn of those kept has none."""
    last = pl.col("turn") == pl.col("turn").max().over("number")
    waits = ("tool_wait_after_ns", "think_after_ns")
    frame = frame.with_columns(last=last).with_columns(
        pl.when(~pl.col("last")).then(pl.col(name)).alias(name) for name in waits
    )
    unknown = frame.filter(~pl.col("last") & pl.all_horizontal(pl.col(name).is_null() for name in waits)).height
    if unknown:
        notes.append(f"the log does not say what was waited for behind {unknown:,} turns: the next one follows at once")
    longest = max(int(frame[name].fill_null(0).to_numpy().max(initial=0)) for name in waits)
    if max_wait_ns:
        longer = frame.filter(pl.any_horizontal(pl.col(name) > max_wait_ns for name in waits)).height
        if longer:
            notes.append(
                f"{longer:,} waits are cut to {max_wait_ns / 1e9:g} s (the longest was {longest / 1e9:,.0f} s)"
            )
        frame = frame.with_columns(pl.col(name).clip(upper_bound=max_wait_ns) for name in waits)
    return frame


def _parents(frame: pl.DataFrame) -> dict[int, int]:
    """Session to the one that started it, where that is in the log. A circle of such claims has no beginning and is
    dropped."""
    named = frame.filter(pl.col("session").is_not_null())
    heads = named.unique("number", keep="first", maintain_order=True)
    numbers = {(place, session): number for place, session, number in heads.select("place", "session", "number").rows()}
    claimed: dict[int, int] = {}
    for place, parent, number in heads.select("place", "parent_session", "number").iter_rows():
        found = None if parent is None else numbers.get((place, parent))
        if found is not None and found != number:
            claimed[number] = found
    settled: set[int] = set()
    for number in list(claimed):
        path: set[int] = set()
        at: int | None = number
        while at is not None and at not in settled and at not in path:
            path.add(at)
            at = claimed.get(at)
        if at is not None and at in path:
            del claimed[at]
        settled.update(path)
    return claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Of a sub-agent: the parent's turn that started it, and the one that waited for it (None: none is known to)."""

    parent: int
    turn: int
    awaited: int | None
    timed: bool


def _started(frame: pl.DataFrame) -> dict[int, _Start]:
    """By number of session. The turn that was asked last before the sub-agent began started it; the first asked when
    it had ended waited for it. Without times it is the parent's first turn, and nobody waits."""
    found: dict[int, _Start] = {}
    subs = frame.filter(pl.col("parent").is_not_null()).group_by("number", "parent", maintain_order=True)
    spans = subs.agg(begin=pl.col("start_ns").first(), end=(pl.col("start_ns") + pl.col("api_ns").fill_null(0)).last())
    asked = dict(frame.filter(pl.col("number").is_in(spans["parent"].unique().to_list()))
                 .group_by("number", maintain_order=True).agg("start_ns").iter_rows())  # fmt: skip
    for number, parent, begin, end in spans.iter_rows():
        times = asked[parent]
        known = begin is not None and end is not None and None not in times
        turn = max((at for at, when in enumerate(times) if when <= begin), default=0) if known else 0
        awaited = next((at for at, when in enumerate(times) if at > turn and when >= end), None) if known else None
        found[number] = _Start(parent=parent, turn=turn, awaited=awaited, timed=known)
    return found


def _kept(
    frame: pl.DataFrame, started: dict[int, _Start], *, sessions: int, turns: int, notes: list[str]
) -> npt.NDArray[np.bool_]:
    """Rows within the limits. A sub-agent goes with the turn that started it."""
    gone: dict[int, bool] = {}
    order: list[int] = frame["number"].unique(maintain_order=True).to_list()
    tops = [number for number in order if number not in started]
    for number in tops[sessions:] if sessions else ():
        gone[number] = True

    def is_gone(number: int) -> bool:
        chain = []
        while number not in gone and number in started:
            chain.append(number)
            start = started[number]
            if turns and start.turn >= turns:
                gone[number] = True
                break
            number = start.parent
        result = gone.get(number, False)
        gone.update(dict.fromkeys(chain, result))
        return result

    late = sum(1 for number in order if is_gone(number) and number in started)
    if late:
        notes.append(f"{late:,} sub-agents are left out with the turns that started them")
    kept = np.array([not is_gone(number) for number in frame["number"].to_list()], dtype=np.bool_)
    return kept & (frame["turn"].to_numpy() < turns) if turns else kept


def _names(frame: pl.DataFrame) -> dict[int, str]:
    """Made-up names in order of appearance: log-0, and log-0.1 for the second sub-agent of its tree."""
    parents = dict(frame.select("number", "parent").unique(maintain_order=True).iter_rows())
    tops: dict[int, int] = {}  # session to the one at the top of its tree
    for number in parents:
        path, at = [], number
        while at not in tops and (parent := parents[at]) is not None:
            path.append(at)
            at = parent
        top = tops.setdefault(at, at)
        tops.update(dict.fromkeys(path, top))
    places: dict[int, str] = {}
    members: dict[int, int] = {}
    names: dict[int, str] = {}
    for number in parents:
        top = tops[number]
        own = places.setdefault(top, f"log-{len(places)}")
        if number == top:
            names[number] = own
            continue
        names[number] = f"{own}.{members.get(top, 0)}"
        members[top] = members.get(top, 0) + 1
    return names


def _after(frame: pl.DataFrame, started: dict[int, _Start]) -> list[tuple[int, ...]]:
    """Rows that have to have ended before a row is due."""
    found: list[list[int]] = [[] for _ in range(frame.height)]
    rows: dict[int, list[int]] = {}
    for at, number in enumerate(frame["number"].to_list()):
        rows.setdefault(number, []).append(at)
    for number, start in started.items():
        own, parent = rows.get(number), rows.get(start.parent)
        if own is None or parent is None:
            continue
        found[own[0]].append(parent[min(start.turn, len(parent) - 1)])
        if start.awaited is not None and start.awaited < len(parent):
            found[parent[start.awaited]].append(own[-1])
    return [tuple(sorted(set(items))) for items in found]
