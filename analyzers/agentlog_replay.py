"""Requests replayed in order against the assumed cache: by units where the log shows them, else by lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analyzers.agentlog_kernel import (
    NO_TIME,
    CacheState,
    Found,
    Requests,
    SessionState,
    held_prefixes,
    number_names,
    place_numbers,
    replay,
)
from analyzers.agentlog_pieces import DEFAULT_BLOCK, INFINITE, OFF, RECORDED, SIZED, Cache, Facts, shortened
from traces.agentlogs.base import Batch, Units

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]

_DENSE_FROM = 1 << 20  # ids up to this are taken as numbers anyway
_DENSE_FACTOR = 8  # and up to so many times the ids seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Facts of a batch's requests, and where each prompt breaks."""

    facts: Facts
    sessions: Ints  # numbers
    turns: Ints  # from 0 within the session
    break_token: Ints  # first token that differs from every prompt before; -1: none does, or it is not known
    break_role: npt.NDArray[np.int8] | None  # index into ROLES, -1 as above


class Numbers:
    """64-bit names to numbers from 0. Ids that are small numbers already keep themselves, which needs no table."""

    def __init__(self) -> None:
        self.used = 0
        self._named = 0
        self._dense = True
        self._keys: Ints = np.zeros(0, dtype=np.int64)
        self._slots: Small = np.zeros(0, dtype=np.int32)

    def of(self, names: Ints) -> Small:
        """Numbers of `names`; new names get new ones."""
        self._named += len(names)
        numbers = np.empty(len(names), dtype=np.int32)
        if not len(names):
            return numbers
        if self._dense:
            low, high = int(names.min()), int(names.max())
            if low >= 0 and high < max(_DENSE_FROM, _DENSE_FACTOR * self._named):
                self.used = max(self.used, high + 1)
                numbers[:] = names
                return numbers
            self._leave_dense()
        self._make_room(len(names))
        self.used = number_names(names, self._keys, self._slots, self.used, numbers)
        return numbers

    def _leave_dense(self) -> None:
        self._dense = False
        self._keys = np.arange(self.used, dtype=np.int64)
        self._slots = np.zeros(0, dtype=np.int32)

    def _make_room(self, more: int) -> None:
        wanted = self.used + more
        if len(self._keys) < wanted:
            self._keys.resize(max(wanted, len(self._keys) * 5 // 4), refcheck=False)
        if len(self._slots) * 3 < wanted * 4 or not len(self._slots):
            size = 1 << max(12, (wanted * 4 // 3).bit_length())
            if size != len(self._slots):
                self._slots = np.zeros(0, dtype=np.int32)  # the old one goes before the new one comes
                self._slots = np.zeros(size, dtype=np.int32)
                place_numbers(self._keys, self.used, self._slots)


class UnitReplay:
    """A cache of units that lives over all batches."""

    def __init__(self, cache: Cache) -> None:
        self._capacity = {INFINITE: -1, OFF: 0, RECORDED: -1, SIZED: cache.tokens or 0}[cache.kind]
        self._ttl_ns = -1 if cache.ttl_ns is None else cache.ttl_ns
        self._names, self._contents = Numbers(), Numbers()
        slots, owners, sizes, newer, older = (np.zeros(0, dtype=np.int32) for _ in range(5))
        self._cache = CacheState(
            flags=np.zeros(0, dtype=np.uint8), slots=slots, owners=owners, last_ns=np.zeros(0, dtype=np.int64),
            sizes=sizes, newer=newer, older=older, ends=np.zeros(5, dtype=np.int64), said=np.zeros(0, dtype=np.uint8),
        )  # fmt: skip
        self._sessions = SessionState(
            tails=np.zeros(0, dtype=np.int32), inputs=np.zeros(0, dtype=np.int64), outputs=np.zeros(0, dtype=np.int64),
            turns=np.zeros(0, dtype=np.int64),
        )  # fmt: skip
        self.n_sessions = 0

    def run(self, batch: Batch, sessions: Ints) -> Replayed:
        """`sessions`: numbers, or -1 where they are to be found; changed in place."""
        units, frame = batch.units, batch.requests
        if units is None:
            raise AssertionError(batch.format)
        numbers = self._names.of(units.chain)
        content, answers, answer_offsets = self._content(units, frame.height)
        self.n_sessions = max(self.n_sessions, int(sessions.max(initial=-1)) + 1)
        self._grow(frame.height, len(numbers))
        requests = Requests(
            offsets=units.offsets, units=numbers, tokens=units.tokens, content=content, answer_offsets=answer_offsets,
            answers=answers, inputs=_ints(frame["input_tokens"]), outputs=_ints(frame["output_tokens"]),
            starts=_ints(frame["start_ns"].fill_null(NO_TIME)), sessions=sessions,
        )  # fmt: skip
        n = frame.height
        reuse, seen, moved, resent, before_in, before_out, turns, broken = np.zeros((8, n), dtype=np.int64)
        found = Found(
            reuse=reuse, seen=seen, moved=moved, resent=resent, before_in=before_in, before_out=before_out,
            turns=turns, broken=broken, expired=np.zeros(n, dtype=np.bool_),
        )  # fmt: skip
        block = batch.block_tokens or 0
        self.n_sessions = replay(
            requests, self._cache, self._sessions, found, block, self._capacity, self._ttl_ns, self.n_sessions
        )
        facts = Facts(
            total=requests.inputs, before_in=found.before_in, before_out=found.before_out, reuse=found.reuse,
            seen=found.seen, expired=found.expired, compaction=_flag(frame, "compaction"), moved=found.moved,
            resent=found.resent if units.content is not None else None,
        )  # fmt: skip
        token, role = _breaks(units, found)
        return Replayed(facts=facts, sessions=sessions, turns=found.turns, break_token=token, break_role=role)

    def _content(self, units: Units, n: int) -> tuple[Small, Small, Ints]:
        if units.content is None or units.answers is None or units.answer_offsets is None:
            empty = np.zeros(0, dtype=np.int32)
            return empty, empty, np.zeros(n + 1, dtype=np.int64)
        found = self._contents.of(units.content), self._contents.of(units.answers)
        _enlarge(self._cache.said, self._contents.used)
        return *found, units.answer_offsets

    def _grow(self, n: int, units: int) -> None:
        used, cache = self._names.used, self._cache
        _enlarge(cache.flags, used)
        _enlarge(self._sessions.tails, used)
        held = used
        if self._capacity > 0:
            _enlarge(cache.slots, used)
            held = int(cache.ends[3]) + units
            for array in (cache.owners, cache.sizes, cache.newer, cache.older):
                _enlarge(array, held)
        if self._ttl_ns >= 0:
            _enlarge(cache.last_ns, held)
        for many in (self._sessions.inputs, self._sessions.outputs, self._sessions.turns):
            _enlarge(many, self.n_sessions + n)


def _ints(series: pl.Series) -> Ints:
    """As an array that compiled code may be given: writable like all others, so that it is compiled once."""
    return np.require(series.to_numpy(), dtype=np.int64, requirements=["C", "W"])


def _enlarge(array: npt.NDArray[Any], size: int) -> None:
    """In place and with room to spare, so that a large array is not copied beside itself."""
    if len(array) < size:
        array.resize(max(size, len(array) * 5 // 4, 1024), refcheck=False)


def _flag(requests: pl.DataFrame, name: str) -> npt.NDArray[np.bool_]:
    return requests[name].fill_null(value=False).to_numpy()


def _breaks(units: Units, found: Found) -> tuple[Ints, npt.NDArray[np.int8] | None]:
    """Only where an earlier prompt of the session broke off: new text behind the whole of it is no break."""
    within = (found.broken >= 0) & (found.before_in > found.seen)
    token = np.where(within, found.seen, -1)
    if units.role is None or not len(units.role):
        return token, None
    place = np.minimum(units.offsets[:-1] + np.maximum(found.broken, 0), len(units.role) - 1)
    return token, np.where(within, units.role[place], -1).astype(np.int8)


def lengths(requests: pl.DataFrame, sessions: Ints, cache: Cache) -> Replayed:
    """All requests of logs without units, in order. A session's prompts are taken to start with the one before unless
    the log says otherwise (`reusable_tokens`); across sessions nothing is known to be common."""
    frame = requests.with_columns(session=pl.Series(sessions))
    before = {name: pl.col(name).shift(1).over("session") for name in ("input_tokens", "output_tokens", "start_ns")}
    frame = frame.with_columns(
        before_in=before["input_tokens"].fill_null(-1), before_out=before["output_tokens"].fill_null(0),
        gap_ns=pl.col("start_ns") - before["start_ns"], turn=pl.int_range(pl.len()).over("session"),
    )  # fmt: skip
    total, before_in = frame["input_tokens"].to_numpy(), frame["before_in"].to_numpy()
    cut = pl.Series(shortened(total, before_in) | _flag(frame, "compaction"))
    # Of a rewritten history it is not known what stayed: what the provider reused is the least of it.
    assumed = (
        pl.when(cut).then(pl.col("cached_tokens").fill_null(0))
        .when(pl.col("input_tokens") < pl.col("before_in")).then(pl.coalesce("cached_tokens", "input_tokens"))
        .otherwise(pl.col("before_in").clip(0))
    )  # fmt: skip
    seen = pl.min_horizontal("input_tokens", pl.coalesce("reusable_tokens", assumed))
    aged = pl.lit(value=False) if cache.ttl_ns is None else (pl.col("gap_ns") > cache.ttl_ns).fill_null(value=False)
    frame = frame.with_columns(seen=seen, aged=aged)
    known = frame["seen"].to_numpy()
    reuse = _held(frame, known, cache)
    zero = np.zeros(frame.height, dtype=np.int64)
    facts = Facts(
        total=total, before_in=before_in,
        before_out=frame["before_out"].to_numpy(), reuse=np.where(frame["aged"].to_numpy(), 0, reuse), seen=known,
        expired=frame["aged"].to_numpy(), compaction=_flag(frame, "compaction"), moved=zero,
    )  # fmt: skip
    broken = (frame["reusable_tokens"].is_not_null() & (frame["seen"] < frame["before_in"])).to_numpy()
    return Replayed(
        facts=facts, sessions=sessions, turns=frame["turn"].to_numpy(), break_token=np.where(broken, known, -1),
        break_role=None,
    )  # fmt: skip


def _held(frame: pl.DataFrame, seen: Ints, cache: Cache) -> Ints:
    if cache.kind == OFF:
        return np.zeros(len(seen), dtype=np.int64)
    if cache.kind != SIZED or cache.tokens is None:
        return seen
    count = int(frame["session"].to_numpy().max(initial=0)) + 1
    held, newer, older = (np.zeros(count, dtype=np.int64) for _ in range(3))
    reuse = np.zeros(len(seen), dtype=np.int64)
    held_prefixes(
        frame["session"].to_numpy(), seen, frame["input_tokens"].to_numpy(), cache.tokens, held, newer, older,
        np.zeros(3, dtype=np.int64), reuse,
    )  # fmt: skip
    return reuse


def block_of(cache: Cache, log_block: int | None) -> int:
    """Tokens of a cache block: as asked, else the log's, else the usual one."""
    return cache.block_tokens or log_block or DEFAULT_BLOCK
