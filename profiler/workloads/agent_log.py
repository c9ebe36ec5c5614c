"""`agent:path=LOG`: the sessions of an agent's log again, with made-up tokens in place of its text.

What is rebuilt: sessions and their turns, the length of every prompt and answer, what a prompt has in common with the
ones before, waits for tools and people, and sub-agents. Sessions get new names: those of the log are its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl

from profiler.workloads.agent_log_layout import Layout, laid_out
from profiler.workloads.agent_log_text import RebuiltPrompts
from profiler.workloads.agent_log_turns import EPOCH_FROM_NS, Log, read_log, turns_of
from profiler.workloads.arrivals import Arrivals, as_planned
from profiler.workloads.options import option, option_keys
from profiler.workloads.replay import located
from traces.agentlogs.base import SKIP, STOP
from traces.errors import UsageProblem

NAME = "agent"
_LEAST_SCALE, _MOST_SCALE = 1e-6, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLogOptions:
    """Options of `agent` with a `path`. Counts of 0 mean all, a `max_wait` of 0 no limit."""

    path: str = option("path", "text", "")  # a file, a folder or a pattern
    format: str = option("format", "text", "")  # default: by the look of each file
    tokenizer: str = option("tokenizer", "text", "")  # a tokenizer.json, for logs without counts
    bad_rows: str = option("bad_rows", "choice", SKIP, choices=(SKIP, STOP))
    first: int = option("first", "count", 0)  # requests, in the order of the log
    sessions: int = option("sessions", "count", 0)  # with the sub-agents they started
    turns: int = option("turns", "count", 0)  # of each session
    time_scale: float = option("time_scale", "number", 1.0, minimum=_LEAST_SCALE, maximum=_MOST_SCALE)  # of all waits
    length_scale: float = option("length_scale", "number", 1.0, minimum=_LEAST_SCALE, maximum=_MOST_SCALE)
    max_wait_ns: int = option("max_wait", "seconds", 0.0, maximum=1e7)  # for a tool, and for a person
    starts: str = option("starts", "choice", "stagger", choices=("stagger", "log"))  # of sessions
    stagger_ns: int = option("stagger", "seconds", 0.5, maximum=86_400)
    timestamp: str = option(
        "timestamp", "choice", "no", choices=("no", "head")
    )  # in place of each prompt's first tokens


class AgentLogWorkload:
    """A closed loop per session; see AgentLogOptions."""

    name: ClassVar[str] = NAME
    options_type: ClassVar[type[AgentLogOptions]] = AgentLogOptions

    def arrivals(self, options: AgentLogOptions, seed: int) -> Arrivals:  # noqa: ARG002  the structure is the log's
        """Raises UsageProblem where options do not fit the log, UnreadableInput where it holds no request."""
        path = located(options.path, NAME)
        tokenizer = located(options.tokenizer, NAME) if options.tokenizer else None
        log = read_log(
            path, name=options.format or None, tokenizer=tokenizer, bad_rows=options.bad_rows, first=options.first
        )
        turns = turns_of(log, sessions=options.sessions, turns=options.turns, max_wait_ns=options.max_wait_ns)
        layout = laid_out(turns.frame, log.units, options.length_scale)
        notes = [*log.notes, *turns.notes, *layout.notes]
        frame = turns.frame.with_columns(
            arrival_ns=_starts(turns.frame, options, notes), session_id=pl.Series(turns.names, dtype=pl.String),
            input_tokens=pl.Series(layout.totals), output_tokens=pl.Series(layout.outputs),
            tool_wait_ns=_scaled("tool_wait_after_ns", options.time_scale),
            think_ns=_scaled("think_after_ns", options.time_scale),
            **_shared(layout, stamped=options.timestamp != "no"),
        )  # fmt: skip
        if options.timestamp != "no":
            notes.append("each prompt begins with a time of its own in place of its first tokens: none is reusable")
        return Arrivals(
            frame=as_planned(frame), block_tokens=layout.block_tokens if "hash_ids" in frame.columns else None,
            closed=True, notes=tuple(notes), source=_source(path, log),
            prompts=RebuiltPrompts(turns=turns, layout=layout, stamped=options.timestamp != "no"),
        )  # fmt: skip


def names_a_log(spec: str) -> bool:
    """Whether `spec` is `agent` with the path of a log.

    Raises UsageProblem for options of made-up sessions beside it, which say what the log says itself.
    """
    from profiler.workloads.agent import AgentOptions

    name, _, text = spec.strip().partition(":")
    keys = [part.partition("=")[0].strip() for part in text.split(",")]
    if name != NAME or "path" not in keys:
        return False
    known = option_keys(AgentLogOptions)
    other = next((key for key in keys if key in option_keys(AgentOptions) and key not in known), None)
    if other is not None:
        raise UsageProblem(
            f"option {other} is of made-up sessions: with path= the log says what they are like",
            hint=f"leave it out; beside path there are {', '.join(known)}",
        )
    return True


def _scaled(column: str, by: float) -> pl.Expr:
    """Halves up, as other workloads do."""
    return pl.col(column) if by == 1.0 else (pl.col(column) * by + 0.5).floor().cast(pl.Int64)


def _starts(frame: pl.DataFrame, options: AgentLogOptions, notes: list[str]) -> pl.Series:
    """When sessions begin; NULL for later turns, and for sub-agents, which wait for the turn that started them."""
    opening = (pl.col("turn") == 0) & pl.col("parent").is_null()
    if options.starts == "log":
        first = frame.filter(opening)["start_ns"]
        since_epoch = (first >= EPOCH_FROM_NS).sum()
        if 0 < since_epoch < len(first):
            raise UsageProblem("the sessions of these logs are not of one clock", hint="use starts=stagger")
        if first.null_count():
            raise UsageProblem(
                f"the log does not say when {first.null_count():,} of its sessions began", hint="use starts=stagger"
            )
        since = ((pl.col("start_ns") - int(first.to_numpy().min())) * options.time_scale + 0.5).floor().cast(pl.Int64)
        return frame.select(pl.when(opening).then(since)).to_series()
    if frame["session"].n_unique() > 1:
        notes.append(f"sessions begin {options.stagger_ns / 1e9:g} s apart; starts=log keeps the distances of the log")
    place = opening.cast(pl.Int64).cum_sum() - 1
    return frame.select(pl.when(opening).then(place * options.stagger_ns)).to_series()


def _shared(layout: Layout, *, stamped: bool) -> dict[str, pl.Series]:
    if stamped:
        return {"prefix_tokens": pl.Series([0] * len(layout.totals), dtype=pl.Int64)}
    if layout.block_tokens is not None:
        return {"hash_ids": pl.Series([row.parts and row.parts.chain for row in layout.rows], dtype=pl.List(pl.Int64))}
    return {"prefix_tokens": pl.Series(layout.shared, dtype=pl.Int64)}


def _source(path: Path, log: Log) -> dict[str, object]:
    return {
        "path": str(path),
        "formats": log.formats,
        "rows_skipped": log.reading.skipped,
        "records_repeated": log.reading.repeated,
        "problems": [{"line": item.line, "message": item.message} for item in log.reading.problems],
    }
