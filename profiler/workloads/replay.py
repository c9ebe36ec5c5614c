"""`replay`: the requests of a log, from whatever service wrote it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from profiler.workloads.arrivals import Arrivals, as_planned
from profiler.workloads.options import option
from profiler.workloads.processes import gamma_gaps
from profiler.workloads.text import stream
from profiler.workloads.transforms import TransformOptions, transformed
from traces.clock import NS_PER_MS, NS_PER_S
from traces.errors import UsageProblem
from traces.printable import printable
from traces.requestlogs.base import SKIP, STOP, LogOptions, RequestLogFrame
from traces.requestlogs.registry import read_request_log

_UNIT_NS = {"auto": None, "s": NS_PER_S, "ms": NS_PER_MS}
_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(TransformOptions):
    """Options of `replay`; see also TransformOptions."""

    path: str = option("path", "text", "")
    format: str = option("format", "text", "")  # default: by the look of the file
    bad_rows: str = option("bad_rows", "choice", SKIP, choices=(SKIP, STOP))
    block_tokens: int = option("block", "count", 0)  # of a hash id; 0: as the format has it
    unit: str = option(
        "unit", "choice", "auto", choices=tuple(_UNIT_NS)
    )  # of times that are plain numbers in JSON lines
    # Instead of the log's own times, for a log without any: arrivals per second (sessions, where turns wait for each
    # other), and the coefficient of variation of their gaps. Drawn first; the transforms come after.
    rate_per_s: float = option("rate", "number", 0.0, maximum=1e6)
    cv: float = option("cv", "number", 1.0, maximum=100)


class ReplayWorkload:
    """See the module."""

    name: ClassVar[str] = "replay"
    options_type: ClassVar[type[ReplayOptions]] = ReplayOptions

    def arrivals(self, options: ReplayOptions, seed: int) -> Arrivals:
        """Raises UsageProblem without a path, UnreadableInput where it holds no log."""
        if not options.path:
            raise UsageProblem("workload replay has no log", hint="write replay:path=FILE")
        path = located(options.path, self.name)
        wanted = LogOptions(
            bad_rows=options.bad_rows, block_tokens=options.block_tokens or None, ns_per_unit=_UNIT_NS[options.unit],
            first=options.first or None,
        )  # fmt: skip
        log = read_request_log(path, wanted, name=options.format or None)
        arrivals = Arrivals(
            frame=log.frame, block_tokens=log.block_tokens if log.frame["hash_ids"].null_count() < len(log.frame) else None,
            closed=log.closed, notes=(*_row_notes(log), *log.notes), source=_source(path, log),
        )  # fmt: skip
        if options.rate_per_s:
            arrivals = _redrawn(arrivals, options, seed)
        return transformed(arrivals, options)


def located(text: str, workload: str) -> Path:
    """The file named, `~` taken for the home directory: behind `path=` no shell does that."""
    try:
        if "\0" in text:
            raise UsageProblem("a path has no NUL in it", hint=f"write {workload}:path=FILE")
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageProblem(f"cannot read {text}: {error}", hint="write the path out") from error


def _redrawn(arrivals: Arrivals, options: ReplayOptions, seed: int) -> Arrivals:
    """The same requests at drawn times. In a closed loop the starts of sessions are drawn, and their turns keep their
    distance to them; else every request."""
    frame = arrivals.frame.with_columns(
        group=pl.coalesce("session_id", pl.format("request-{}", "index"))
        if arrivals.closed or options.loop == "closed"
        else pl.col("index")
    )
    starts = frame.group_by("group").agg(pl.col("arrival_ns").min().alias("start"), pl.col("index").min())
    starts = starts.sort(pl.col("start").fill_null(0), "index")
    gaps = gamma_gaps(stream(seed, "replay", "arrivals"), options.rate_per_s, options.cv)
    drawn = pl.Series("drawn", list(islice(accumulate(gaps, initial=0), starts.height)), dtype=pl.Int64)
    frame = frame.join(starts.select("group", "start", drawn), on="group", how="left", maintain_order="left")
    moved = pl.col("arrival_ns") - pl.col("start") + pl.col("drawn")
    frame = frame.with_columns(arrival_ns=moved).sort(
        pl.col("arrival_ns").fill_null(pl.col("drawn")), maintain_order=True
    )
    what = "sessions" if arrivals.closed else "requests"
    note = f"arrivals are drawn, {options.rate_per_s:g} {what} per second, not the log's"
    return replace(arrivals, frame=as_planned(frame), notes=(*arrivals.notes, note))


def _row_notes(log: RequestLogFrame) -> list[str]:
    notes = []
    if log.skipped:
        listed = "; ".join(f"line {item.line}: {printable(item.message)}" for item in log.problems[:_PROBLEMS_SHOWN])
        more = f"; and {log.skipped - _PROBLEMS_SHOWN:,} more" if log.skipped > _PROBLEMS_SHOWN else ""
        notes.append(f"{log.skipped:,} rows are no requests and were skipped: {listed}{more}")
    if log.out_of_order:
        notes.append(f"{log.out_of_order:,} rows came before an earlier request in the file; they are put in order")
    return notes


def _source(path: Path, log: RequestLogFrame) -> dict[str, Any]:
    return {
        "path": str(path),
        "format": log.format,
        "origin_ns": log.origin_ns,
        "rows_skipped": log.skipped,
        "problems": [{"line": item.line, "message": item.message} for item in log.problems],
        "out_of_order": log.out_of_order,
    }
