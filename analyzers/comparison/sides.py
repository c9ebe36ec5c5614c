"""The sides of a comparison: which runs and passes a name means, and that the passes of one side did the same work.

`PATH[#run_id][@pass[,pass…]]`, several joined by `+`. A pass may be a pattern (`a*`). Several passes of a side, or several
runs, are repeats of the same thing.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from traces.errors import UnreadableInput, UsageProblem
from traces.health import withheld
from traces.store import TraceStore

RECORDED = "profiled"
_SAME_WORK = 0.02  # prompt tokens of two repeats may differ by so much, share
_BAD_PASSES = "stepscope requests RUN says what passes there are; pick some with RUN@pass,pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run of a side. `requests` are those of `passes` (compare_requests.sql); `passes` is empty where there are none.

    `recorded`: the run's recorded window belongs to what was asked for, so that device numbers may be taken from it.
    """

    name: str
    store: TraceStore
    facts: dict[str, Any]  # row of runs, config decoded
    passes: tuple[str | None, ...]
    requests: pl.DataFrame
    recorded: bool
    withheld: dict[str, str]
    tables: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    def read(self, name: str, **parameters: Any) -> pl.DataFrame:
        """Rows of `sql/compare_NAME.sql`; without parameters, read once. Raises UnreadableInput where they make no sense."""
        if name in self.tables:
            return self.tables[name]
        rows = _rows(self.store, name, parameters)
        if not parameters:
            self.tables[name] = rows
        return rows

    def of_pass(self, name: str | None, rows: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of one pass."""
        data = self.requests if rows is None else rows
        return data.filter(pl.col("pass").eq_missing(pl.lit(name, dtype=pl.String)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a side."""

    part: Part
    name: str | None
    requests: pl.DataFrame
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Base or a candidate."""

    name: str
    parts: tuple[Part, ...]
    passes: tuple[Pass, ...] = field(default=())

    @property
    def recorded(self) -> tuple[Part, ...]:
        """Runs whose recorded window may be read."""
        return tuple(part for part in self.parts if part.recorded)


@contextlib.contextmanager
def opened_sides(names: Sequence[str]) -> Iterator[list[Side]]:
    """Every side, its databases open while the block lasts. Raises UsageProblem, and what TraceStore.open raises."""
    with contextlib.ExitStack() as stack:
        yield [_side(name, stack) for name in names]


def _side(name: str, stack: contextlib.ExitStack) -> Side:
    parts = tuple(_part(piece, stack) for piece in _pieces(name))
    passes = [_pass(part, each) for part in parts for each in part.passes]
    _check_equal_work(name, passes)
    passes.sort(key=lambda item: (item.start_ns is None, item.start_ns or 0))
    return Side(name=name, parts=parts, passes=tuple(passes))


def _pieces(name: str) -> list[str]:
    """`a+b` as its runs; a `+` that is part of a path or of a run's id stays. Raises UsageProblem where a run is left out."""
    if _is_there(name, whole=True):
        return [name]
    pieces: list[str] = []
    for word in name.split("+"):
        if pieces and not _is_there(pieces[-1]):
            pieces[-1] += f"+{word}"
        else:
            pieces.append(word)
    if not all(piece.strip("+ ") for piece in pieces):
        raise UsageProblem(
            f"no run is named in {name!r}", hint="a side is PATH[#run_id][@pass], or several joined by +"
        )
    return pieces


def _is_there(name: str, *, whole: bool = False) -> bool:
    """Whether the path of a run exists. `whole`: a `+` in its id is taken for one between runs."""
    run = _split_passes(name)[0]
    path, mark, run_id = run.rpartition("#")
    return _exists(run) or (bool(mark) and _exists(path) and not (whole and "+" in run_id))


def _exists(path: str) -> bool:
    """Names too long for a file, and with a NUL in them, are none."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def _split_passes(name: str) -> tuple[str, list[str]]:
    if "@" not in name or _exists(name):
        return name, []
    run, _, passes = name.rpartition("@")
    wanted = [item.strip() for item in passes.split(",") if item.strip()]
    if _exists(run.partition("#")[0]) or not _exists(name.partition("#")[0]):
        if not run or not wanted:
            raise UsageProblem(f"no pass is named in {name}", hint="write RUN@pass, such as run.duckdb@a1,a2")
        return run, wanted
    return name, []


def _part(name: str, stack: contextlib.ExitStack) -> Part:
    run, wanted = _split_passes(name)
    store = stack.enter_context(TraceStore.open(run))
    facts = store.query("SELECT * FROM runs WHERE run_id = ?", [store.run_id]).to_dicts()[0]
    facts["config"] = _decoded(facts.get("config"))
    requests = _rows(store, "requests", {})
    known = requests.sort("arrival_ns")["pass"].unique(maintain_order=True).to_list()
    passes = _chosen(name, known, wanted)
    recorded = not wanted or RECORDED in passes
    kept = requests.filter(pl.any_horizontal(
        [pl.col("pass").eq_missing(pl.lit(each, dtype=pl.String)) for each in passes] or [pl.lit(value=False)]
    ))  # fmt: skip
    return Part(
        name=name, store=store, facts=facts, passes=passes, requests=kept, recorded=recorded,
        withheld=withheld(store.connection, store.run_id),
    )  # fmt: skip


def _rows(store: TraceStore, name: str, parameters: Mapping[str, Any]) -> pl.DataFrame:
    try:
        return store.named(f"compare_{name}", "analyzers", **parameters)
    except duckdb.DataError as error:  # times whose difference is no number of 64 bits, and the like
        told = str(error).splitlines()[0]
        raise UnreadableInput(
            f"{store.path} holds values that cannot be used: {told}", hint="was it edited? Ingest the recording again"
        ) from error


def _decoded(text: Any) -> dict[str, Any]:
    """runs.config; a database may come from anywhere."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _chosen(name: str, known: list[str | None], wanted: list[str]) -> tuple[str | None, ...]:
    """The passes asked for; else the control pass; else all, where they did the same work."""
    if wanted:
        found: list[str | None] = []
        for pattern in wanted:
            matched = [each for each in known if each is not None and fnmatch.fnmatchcase(each, pattern)]
            if not matched:
                there = ", ".join(str(each) for each in known[:12]) or "none"
                raise UsageProblem(f"{name} has no pass {pattern}", hint=f"passes: {there}")
            found += [each for each in matched if each not in found]
        return tuple(found)
    if "control" in known:
        return ("control",)
    return tuple(known)


def _pass(part: Part, name: str | None) -> Pass:
    rows = part.of_pass(name)
    return Pass(
        part=part, name=name, requests=rows, start_ns=_whole(rows["arrival_ns"].min()), end_ns=_whole(rows["finished_ns"].max())
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _check_equal_work(name: str, passes: Sequence[Pass]) -> None:
    """Repeats have the same requests, and prompts of the same length. Raises UsageProblem."""
    sizes = {
        (item.part.name, item.name): (item.requests.height, int(item.requests["prompt_tokens"].sum() or 0))
        for item in passes
    }
    counts = {rows for rows, _ in sizes.values()}
    tokens = [total for _, total in sizes.values()]
    if len(counts) > 1 or (tokens and max(tokens) - min(tokens) > _SAME_WORK * max(tokens)):
        listed = ", ".join(
            f"{each} ({rows} requests, {total:,} prompt tokens)" for (_, each), (rows, total) in list(sizes.items())[:6]
        )
        raise UsageProblem(
            f"the passes of {name} did not do the same work, so they are no repeats of one thing: {listed}",
            hint=_BAD_PASSES,
        )
