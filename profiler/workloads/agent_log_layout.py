"""Where in its prompt each part of a log's prompt lies, in tokens.

A prompt is as long as the log says. Block ids lie on the grid of their size. Pieces of messages lie where they lay when
they stood there first, so that two prompts have the pieces they begin with in common token by token; what is new in a
prompt shares the tokens that are left in the proportions of the log. Of logs with lengths only it is known how much a
prompt has in common with the one before (the same reading as `stepscope agentlog`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traces.agentlogs.base import Units

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a prompt consists of, in order."""

    chain: Ints  # names of the parts and all before them
    content: Ints  # names of the parts alone
    ends: Ints  # tokens from the start of the prompt
    roles: npt.NDArray[np.int8] | None  # index into ROLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prompt. `parts` is None in a log with lengths only; then `seen` says how much the prompt begins with."""

    total: int
    output: int
    parts: Parts | None
    seen: int  # leading tokens that some prompt before had too
    intact: bool  # nothing of the session's prompt before was changed
    block: float | None  # tokens of a whole part


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One entry per request. `block_tokens`: all parts of all prompts are blocks of so many tokens; else None."""

    rows: list[Row]
    totals: list[int]
    outputs: list[int]
    shared: list[int]  # tokens that a prompt has in common with the turn before
    block_tokens: float | None
    notes: tuple[str, ...]


def laid_out(frame: pl.DataFrame, units: Sequence[Units | None], scale: float) -> Layout:
    """The prompts of `frame` (agent_log_turns.Turns), `scale` times as long."""
    places = _Places(scale)
    seen, intact, unseen = _by_length(frame)
    columns = frame.select("batch", "row", "input_tokens", "output_tokens", "block")
    rows = []
    for number, (batch, row, total, output, block) in enumerate(columns.iter_rows()):
        parts = units[batch]
        scaled = max(1, _scaled(total, scale))
        rows.append(Row(
            total=scaled, output=max(1, _scaled(output, scale)) if output else 0,
            parts=None if parts is None else places.of(parts, row, total, scaled),
            seen=min(_scaled(seen[number], scale), scaled), intact=intact[number],
            block=block * scale if block else None,
        ))  # fmt: skip
    return Layout(
        rows=rows, totals=[row.total for row in rows], outputs=[row.output for row in rows],
        shared=_shared(frame, rows), block_tokens=_one_grid(rows), notes=(*places.notes(), *unseen),
    )  # fmt: skip


def _scaled(tokens: int, scale: float) -> int:
    """Halves up, as other workloads do."""
    return tokens if scale == 1.0 else int(tokens * scale + 0.5)


class _Places:
    """Where parts lie. `known`: the end of each part that stood in a prompt by now, with all before it."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._known: dict[int, int] = {}
        self._cut = 0

    def of(self, units: Units, row: int, total: int, scaled: int) -> Parts:
        """Of a prompt of `total` tokens, which is to have `scaled`."""
        part = slice(int(units.offsets[row]), int(units.offsets[row + 1]))
        chain, tokens = units.chain[part], units.tokens[part].astype(np.int64)
        ends = np.cumsum(tokens)
        if units.content is not None:
            ends = self._settled(chain, ends, total)
        if self._scale != 1.0:
            ends = np.floor(ends * self._scale + 0.5).astype(np.int64)
        return Parts(
            chain=chain, content=chain if units.content is None else units.content[part],
            ends=np.minimum(ends, scaled), roles=None if units.role is None else units.role[part],
        )  # fmt: skip

    def _settled(self, chain: Ints, ends: Ints, total: int) -> Ints:
        names = chain.tolist()
        at = 0
        places = []
        while at < len(names) and (place := self._known.get(names[at])) is not None:
            places.append(place)
            at += 1
        begin = places[-1] if places else 0
        before = int(ends[at - 1]) if at else 0
        whole = int(ends[-1]) - before if at < len(names) else 0
        if begin > total or (begin == total and whole):
            self._cut += 1
            return np.array([*places, *[total] * (len(names) - at)], dtype=np.int64)
        if at < len(names):
            share = (ends[at:] - before).astype(np.float64) * ((total - begin) / whole if whole else 0.0)
            new = begin + np.floor(share + 0.5).astype(np.int64)
            new[-1] = total
            added = new.tolist()
            self._known.update(zip(names[at:], added, strict=True))
            places += added
        return np.array(places, dtype=np.int64)

    def notes(self) -> tuple[str, ...]:
        """What did not fit together."""
        if not self._cut:
            return ()
        told = "are counted shorter than the same text was in an earlier prompt: what was new in them is left out"
        return (f"{self._cut:,} prompts {told}",)


def _by_length(frame: pl.DataFrame) -> tuple[list[int], list[bool], tuple[str, ...]]:
    """Of each prompt, tokens that stood in an earlier one; whether the whole earlier prompt of its session is left; notes.

    As in `stepscope agentlog` with lengths only: a prompt begins with the session's earlier one, unless the log says how
    far it does. Of a rewritten history it is not known what stayed: what the provider reused is the least of it.
    """
    before = pl.col("input_tokens").shift(1).over("number").fill_null(-1)
    total = pl.col("input_tokens")
    flagged = pl.col("compaction").fill_null(value=False)
    cut = (total * 10 <= before * 9) | flagged
    assumed = (
        pl.when(cut).then(pl.col("cached_tokens").fill_null(0))
        .when(total < before).then(pl.coalesce("cached_tokens", total))
        .otherwise(before.clip(0))
    )  # fmt: skip
    seen = pl.min_horizontal(total, pl.coalesce("reusable_tokens", assumed))
    block = pl.col("block").fill_null(1)
    alone = (pl.col("turn") == 0) & pl.col("parent").is_null()
    found = frame.select(
        seen=pl.when(alone).then(0).otherwise(seen), intact=(seen >= pl.min_horizontal(before, total) // block * block),
        lost=pl.when(alone & ~pl.col("shown")).then(seen),
    )  # fmt: skip
    lost = int(found["lost"].fill_null(0).sum())
    told = "tokens that first prompts had in common with prompts outside of the log are not in common here"
    return found["seen"].to_list(), found["intact"].to_list(), (f"{lost:,} {told}",) if lost else ()


def leading(one: Parts, other: Parts) -> tuple[int, int]:
    """How many leading parts two prompts have in common, and tokens."""
    most = min(len(one.chain), len(other.chain))
    different = np.flatnonzero(one.chain[:most] != other.chain[:most])
    parts = int(different[0]) if len(different) else most
    return parts, min(int(one.ends[parts - 1]), int(other.ends[parts - 1])) if parts else 0


def _shared(frame: pl.DataFrame, rows: list[Row]) -> list[int]:
    latest: dict[int, Parts] = {}
    found = []
    for number, row in zip(frame["number"].to_list(), rows, strict=True):
        if row.parts is None:
            found.append(row.seen)
            continue
        before = latest.get(number)
        found.append(0 if before is None else leading(before, row.parts)[1])
        latest[number] = row.parts
    return found


def _one_grid(rows: list[Row]) -> float | None:
    sizes = {None if row.parts is None else row.block for row in rows}
    return sizes.pop() if len(sizes) == 1 else None
