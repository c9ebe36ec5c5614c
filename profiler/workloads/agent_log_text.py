"""Prompts of a rebuilt log: token ids, and what the parts of each prompt are.

Parts of one name are one text wherever they stand, and parts that stand behind the same text begin with different
tokens, so that prompts have in common what they have in the log and not a token more (up to 224 ways to go on from one
place: that many first tokens there are).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from profiler.workloads.agent_log_layout import Layout, Parts, Row, leading
from profiler.workloads.agent_log_turns import Turns
from profiler.workloads.request import PlannedRequest
from profiler.workloads.synthesis import within_memory
from profiler.workloads.tokens import FIRST_ID, N_IDS, token_text
from traces.agentlogs.base import ROLES

Ints = npt.NDArray[np.int64]
Segments = tuple[tuple[str, int], ...]

_STAMP_TOKENS = 16
_ROOT = 0x5EED  # stands before the first part of a prompt
_PLANNED_ROLE = {"tool": "observation"}  # the others have the same names in a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPrompts:
    """The prompts of `turns` as laid out; `stamped`: each begins with tokens of its own instead of its first ones."""

    turns: Turns
    layout: Layout
    stamped: bool

    def requests(self, frame: pl.DataFrame, seed: int) -> Iterator[PlannedRequest]:
        """A request per row of `frame` (PLANNED_COLUMNS), cut to its length. Raises UsageProblem where they are too long
        in all."""
        within_memory(int(frame["input_tokens"].sum()))
        texts = _Texts(seed, self.layout.rows)
        sessions = self.turns.frame.select("number", "parent", "tool_step", "tool_wait_ns")
        columns = ("index", "turn", "arrival_ns", "input_tokens", "output_tokens", "tool_wait_ns", "think_ns")
        planned = frame.select(columns).iter_rows(named=True)
        for place, (row, facts) in enumerate(zip(planned, sessions.iter_rows(named=True), strict=True)):
            prompt, segments = texts.next(place, facts)
            length = row["input_tokens"]
            ids = prompt[:length]
            if self.stamped:
                ids = _stamp(seed, place, min(_STAMP_TOKENS, length)) + ids[_STAMP_TOKENS:]
            yield PlannedRequest(
                index=row["index"], session_id=self.turns.names[place], parent_session_id=self.turns.parents[place],
                turn=row["turn"], arrival_offset_ns=row["arrival_ns"], prompt_token_ids=tuple(ids),
                segments=_clipped(segments, length), max_tokens=max(1, row["output_tokens"]),
                tool_wait_ns=row["tool_wait_ns"] or 0, think_ns=row["think_ns"] or 0, after=self.turns.after[place],
            )  # fmt: skip


def _stamp(seed: int, place: int, length: int) -> bytes:
    return bytes([FIRST_ID + place % N_IDS]) + token_text(seed, "stamp", place, length=length - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """A session's newest prompt."""

    row: Row
    prompt: bytes
    segments: Segments


@dataclass(slots=True, kw_only=True)
class _Family:
    """A session with lengths only and its sub-agents: what was said, and the first tokens with which prompts went on."""

    told: dict[int, list[bytes]] = field(default_factory=dict)  # of a session: contexts, each longer than all after it
    taken: dict[int, set[int]] = field(default_factory=dict)  # by the place in the prompt


class _Texts:
    """Makes one prompt after another, in the order of the layout's rows."""

    def __init__(self, seed: int, rows: list[Row]) -> None:
        self._seed, self._rows = seed, rows
        self._first = _first_tokens(rows)
        self._before: dict[int, _Before] = {}
        self._families: dict[int, _Family] = {}
        self._top: dict[int, int] = {}
        self._opened: set[int] = set()  # first tokens of prompts that begin with nothing known

    def next(self, place: int, facts: dict[str, Any]) -> tuple[bytes, Segments]:
        """The prompt of a row and its segments, which tile it."""
        row, number = self._rows[place], facts["number"]
        before = self._before.get(number)
        if row.parts is not None:
            parts, common = (
                (0, 0) if before is None or before.row.parts is None else leading(before.row.parts, row.parts)
            )
            prompt = self._shown(place, row.total, row.parts, b"" if before is None else before.prompt[:common], parts)
            cut = before is not None and common + (row.block or 1) <= min(before.row.total, row.total)
        else:
            common, cut = row.seen, not row.intact
            prompt = self._told(place, row, facts, before)
        roles = None if row.parts is None else _of_roles(row.parts, row.total)
        segments = _grown(before, row, facts, common=common, cut=cut) if roles is None else roles
        self._before[number] = _Before(row=row, prompt=prompt, segments=segments)
        return prompt, segments

    def _shown(self, place: int, total: int, parts: Parts, kept: bytes, known: int) -> bytes:
        """`kept`: as much as is known from the turn before, `known` parts, the last one perhaps not to its end."""
        pieces = [kept]
        at = len(kept)
        first = max(0, known - 1)
        start = int(parts.ends[first - 1]) if first else 0
        for name, end in zip(parts.content[first:].tolist(), parts.ends[first:].tolist(), strict=True):
            if end > at:
                pieces.append(self._text(name, end - start)[at - start :])
                at = end
            start = end
        if at < total:
            pieces.append(self._text(_rest_of(place), total - at))
        return b"".join(pieces)

    def _text(self, name: int, length: int) -> bytes:
        text = token_text(self._seed, "part", name, length=length)
        first = self._first.get(name)
        return text if first is None else bytes([FIRST_ID + first]) + text[1:]

    def _told(self, place: int, row: Row, facts: dict[str, Any], before: _Before | None) -> bytes:
        """Of a log with lengths only: begins with what the log says, then the answer before, then something new."""
        number, parent = facts["number"], facts["parent"]
        top = self._top.setdefault(number, number if parent is None else self._top.get(parent, number))
        family = self._families.setdefault(top, _Family())
        contexts = family.told.setdefault(number, [])
        known = contexts or family.told.get(parent, [])
        base = next((text for text in reversed(known) if len(text) >= row.seen), known[0] if known else b"")
        wanted = row.seen
        whole = before is not None and row.seen >= min(before.row.total, row.total)
        if before is not None and whole and known and base is known[-1]:
            wanted = max(wanted, min(row.total, before.row.total + before.row.output))
        kept = base[:wanted]
        taken = family.taken.setdefault(len(kept), set()) if kept else self._opened
        if len(base) > len(kept):
            taken.add(base[len(kept)])
        prompt = kept + _other(token_text(self._seed, "turn", place, length=row.total - len(kept)), taken)
        answer = token_text(self._seed, "answer", place, length=row.output)
        context = prompt + _other(answer, family.taken.setdefault(len(prompt), set()))
        while contexts and len(contexts[-1]) <= len(context):
            contexts.pop()
        contexts.append(context)
        return prompt


def _other(text: bytes, taken: set[int]) -> bytes:
    """`text` with a first token that is not `taken`, which it is from now on."""
    if not text:
        return text
    first = text[0]
    if len(taken) < N_IDS:
        while first in taken:
            first = FIRST_ID + (first - FIRST_ID + 1) % N_IDS
    taken.add(first)
    return bytes([first]) + text[1:]


def _rest_of(place: int) -> int:
    """The name of what stands behind the last block of a prompt: nobody else's."""
    return -1 - place - (1 << 62)


def _first_tokens(rows: list[Row]) -> dict[int, int]:
    """First tokens, from 0, of parts that have to be told apart: of those that stand behind the same text.

    One after another in order of appearance, each the first that none of its neighbours has.
    """
    befores, names = [], []
    for place, row in enumerate(rows):
        if row.parts is None:
            continue
        ends = row.parts.ends
        some = np.diff(ends, prepend=0) > 0
        content, chain = row.parts.content[some], row.parts.chain[some]
        if not len(ends) or ends[-1] < row.total:
            content, chain = np.append(content, _rest_of(place)), np.append(chain, _rest_of(place))
        befores.append(np.concatenate([[_ROOT], chain[:-1]]).astype(np.int64))
        names.append(content)
    if not names:
        return {}
    pairs = pl.DataFrame({"before": np.concatenate(befores), "name": np.concatenate(names)}).unique(maintain_order=True)
    crowded = pairs.filter(pl.len().over("before") > 1)
    places: dict[int, list[int]] = {}
    for before, name in crowded.iter_rows():
        places.setdefault(name, []).append(before)
    used: dict[int, set[int]] = {}
    found: dict[int, int] = {}
    for name, around in places.items():
        taken = set().union(*(used.setdefault(before, set()) for before in around))
        first = name % N_IDS
        if len(taken) < N_IDS:
            while first in taken:
                first = (first + 1) % N_IDS
        found[name] = first
        for before in around:
            used[before].add(first)
    return found


def _of_roles(parts: Parts, total: int) -> Segments | None:
    """As the log names them; neighbours of one role are one segment, and what is behind the last part is the last one's. None
    where the log names none."""
    if parts.roles is None or not len(parts.roles):
        return None
    sizes = np.diff(parts.ends, prepend=0).tolist()
    sizes[-1] += total - int(parts.ends[-1])
    named = (ROLES[role] for role in parts.roles.tolist())
    return _merged((_PLANNED_ROLE.get(role, role), size) for role, size in zip(named, sizes, strict=True))


def _grown(before: _Before | None, row: Row, facts: dict[str, Any], *, common: int, cut: bool) -> Segments:
    """Of a log that names no roles. A session's first prompt is one segment, 'system', as nothing divides it; behind the
    prompt before comes its answer, then the tool's result or the person's words; a rewritten history is a user's."""
    if before is None:
        return (("system", row.total),)
    common = min(common, before.row.total, row.total)
    kept = _clipped(before.segments, common)
    rest = row.total - common
    if cut:
        return _merged((*kept, ("user", rest)))
    old = min(before.row.total - common, rest)
    answer = min(before.row.output, rest - old)
    tool = facts["tool_step"] if facts["tool_step"] is not None else facts["tool_wait_ns"] is not None
    role = before.segments[-1][0]
    return _merged(
        (*kept, (role, old), ("assistant", answer), ("observation" if tool else "user", rest - old - answer))
    )


def _merged(parts: Any) -> Segments:
    found: list[tuple[str, int]] = []
    for role, tokens in parts:
        if found and found[-1][0] == role:
            found[-1] = (role, found[-1][1] + tokens)
        elif tokens:
            found.append((role, tokens))
    return tuple(found)


def _clipped(segments: Segments, length: int) -> Segments:
    """The segments of the first `length` tokens."""
    found, left = [], length
    for role, tokens in segments:
        if left <= 0:
            break
        found.append((role, min(tokens, left)))
        left -= min(tokens, left)
    return tuple(found)
