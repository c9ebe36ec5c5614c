"""How much of the prompts a prefix cache could give back, before anything is run.

Requests are taken in order of time, each finished before the next; a turn that waits for the one before comes after the
waits, as if answers took no time. What an engine finds differs by what is still running, and it never takes a whole
prompt from its cache. A cache of blocks drops the block not used for longest, of one
prompt the last block first. Where a log knows sessions and not blocks, a session's context is kept as a whole, cut from
its end, the session not used for longest first; what an engine answered counts as kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from profiler.workloads.arrivals import Arrivals
from profiler.workloads.transforms import mixed
from traces.errors import UsageProblem

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
_FACTOR = 0x5851F42D4C957F2D  # odd: powers of it never vanish


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReuse:
    """Tokens of prompts that an earlier prompt had computed; `known_tokens` are those of the prompts it is known of."""

    by: str | None  # 'blocks' | 'sessions'; NULL: nothing is known of common text
    known_tokens: int
    infinite_tokens: int | None  # with a cache that keeps everything
    cache_tokens: int | None  # size of the cache asked for
    cached_tokens: int | None  # with that cache


def prefix_reuse(
    arrivals: Arrivals, *, cache_tokens: int | None = None, cache_blocks: int | None = None
) -> PrefixReuse:
    """Reuse with an infinite cache, and with one of that size where a size is given. Raises UsageProblem for a size in
    blocks where there are none."""
    frame, block = _in_time(arrivals.frame), arrivals.block_tokens
    hashed = frame.filter(pl.col("hash_ids").is_not_null())
    if cache_blocks is not None and (block is None or hashed.is_empty()):
        raise UsageProblem("the prompts are not known in blocks", hint="give the size of the cache with --cache-tokens")
    if block is not None and not hashed.is_empty():
        blocks = PromptBlocks.of(hashed, block)
        size = cache_blocks if cache_tokens is None else int(cache_tokens / block)
        return PrefixReuse(
            by="blocks", known_tokens=int(hashed["input_tokens"].sum()), infinite_tokens=blocks.tokens(blocks.seen_before()),
            cache_tokens=None if size is None else int(size * block) if cache_tokens is None else cache_tokens,
            cached_tokens=None if size is None else blocks.tokens(blocks.in_cache(size)),
        )  # fmt: skip
    known = frame.filter(pl.col("prefix_tokens").is_not_null())
    if known.is_empty():
        return PrefixReuse(by=None, known_tokens=0, infinite_tokens=None, cache_tokens=cache_tokens, cached_tokens=None)
    return PrefixReuse(
        by="sessions", known_tokens=int(known["input_tokens"].sum()), infinite_tokens=int(known["prefix_tokens"].sum()),
        cache_tokens=cache_tokens, cached_tokens=None if cache_tokens is None else _kept_by_session(known, cache_tokens),
    )  # fmt: skip


def _in_time(frame: pl.DataFrame) -> pl.DataFrame:
    """The requests in order of time, later turns of a closed loop by the waits before them."""
    if not frame["arrival_ns"].null_count():
        return frame.sort("arrival_ns", maintain_order=True)
    waits = pl.col("tool_wait_ns").fill_null(0) + pl.col("think_ns").fill_null(0)
    by_turn = frame.sort("session_id", "turn", maintain_order=True)
    start = pl.col("arrival_ns").min().over("session_id").fill_null(0)
    waited = (waits.cum_sum() - waits).over("session_id")
    due = pl.coalesce("arrival_ns", start + waited)
    return by_turn.with_columns(due=due).sort("due", "index").drop("due")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBlocks:
    """Blocks of prompts, end to end. Equal `nodes` stand for equal text from the start of the prompt."""

    nodes: I64
    starts: I64  # of each request in `nodes`; one more than requests
    input_tokens: I64
    block_tokens: float

    @classmethod
    def of(cls, frame: pl.DataFrame, block_tokens: float) -> PromptBlocks:
        """Of rows that all have hash ids. Ids that name a block alone are told apart by what stands before it."""
        lengths = frame["hash_ids"].list.len().to_numpy().astype(np.int64)
        ids = frame["hash_ids"].explode().drop_nulls().to_numpy().astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(
            nodes=_nodes(ids, starts),
            starts=starts,
            input_tokens=frame["input_tokens"].to_numpy(),
            block_tokens=block_tokens,
        )

    def seen_before(self) -> I64:
        """Per request, leading blocks that an earlier request had."""
        lengths = np.diff(self.starts)
        row = np.repeat(np.arange(len(lengths)), lengths)
        first = np.zeros(int(self.nodes.max(initial=-1)) + 1, dtype=np.int64)
        first[self.nodes[::-1]] = row[
            ::-1
        ]  # of several values for one place the last stays, which is the first request
        new = first[self.nodes] == row
        leading = lengths.copy()
        np.minimum.at(leading, row[new], _places(self.starts)[new])
        return leading

    def in_cache(self, size: int) -> I64:
        """Per request, leading blocks that a cache of `size` blocks still has."""
        kept = np.zeros(int(self.nodes.max(initial=-1)) + 1, dtype=np.bool_)
        last = np.zeros(len(kept), dtype=np.int64)  # the request that had the block last
        leading = np.zeros(len(self.input_tokens), dtype=np.int64)
        total = oldest = 0
        for request in range(len(leading)):
            prompt = self._prompt(request)
            there = kept[prompt]
            leading[request] = len(prompt) if there.all() else int(there.argmin())
            total += int((~there).sum())
            kept[prompt], last[prompt] = True, request
            while total > size:
                left = self._prompt(oldest)
                left = left[kept[left] & (last[left] == oldest)]
                dropped = min(len(left), total - size)
                kept[left[len(left) - dropped :]] = False
                total -= dropped
                oldest += dropped == len(left)
        return leading

    def _prompt(self, request: int) -> I64:
        return self.nodes[self.starts[request] : self.starts[request + 1]]

    def tokens(self, leading: I64) -> int:
        """Tokens in `leading` blocks of each prompt: a last block may be a partial one."""
        reached = np.floor(leading * self.block_tokens + 0.5).astype(np.int64)
        return int(np.minimum(reached, self.input_tokens).sum())


def _places(starts: I64) -> I64:
    """Of each block, its place in its prompt."""
    lengths = np.diff(starts)
    return np.arange(int(starts[-1]), dtype=np.int64) - np.repeat(starts[:-1], lengths)


def _nodes(ids: I64, starts: I64) -> I64:
    """Small numbers for blocks, equal where all ids up to there are equal."""
    place = _places(starts)
    if len(ids) and ids.min() >= 0 and ids.max() < 4 * len(ids):
        before = np.where(place == 0, -1, np.roll(ids, 1))
        parent = np.full(int(ids.max()) + 1, -2, dtype=np.int64)
        parent[ids] = before
        if (
            parent[ids] == before
        ).all():  # an id always follows the same one: it names all that stands before it as well
            return ids
    lengths = np.diff(starts)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _FACTOR, dtype=np.uint64), dtype=np.uint64)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(mixed(ids.view(np.uint64)) * powers[place], dtype=np.uint64)])
    chained: U64 = sums[1:] - np.repeat(sums[starts[:-1]], lengths) + mixed(place.view(np.uint64))
    return np.unique(chained, return_inverse=True)[1].astype(np.int64)


def _kept_by_session(frame: pl.DataFrame, size_tokens: int) -> int:
    kept: OrderedDict[str, int] = OrderedDict()  # tokens of each session's context
    total = hits = 0
    rows = frame.select("session_id", "prefix_tokens", "input_tokens", "output_tokens")
    for session, prefix, prompt, output in rows.iter_rows():
        before = kept.pop(session, 0)
        hits += min(prefix, before)
        total += prompt + output - before
        kept[session] = prompt + output
        while total > size_tokens:
            oldest, tokens = next(iter(kept.items()))
            dropped = min(tokens, total - size_tokens)
            total -= dropped
            if dropped == tokens:
                kept.popitem(last=False)
            else:
                kept[oldest] = tokens - dropped
    return hits
