"""The pieces a prompt is made of, under an assumed cache (method of re-computation by cause).

    cached            reused
    fresh             not computed before
    resent_output     the model's own answer, back as input
    lost, by cause    computed before and computed again:
      caching_off       there is no cache
      expired           in the cache once, and too old
      evicted           in the cache once, and pushed out
      unexplained       known to be computed before, and not reused by the provider
      block_remainder   the unfilled last block of the common prefix (and the last token, which is always computed)
      prefix_changed    behind the first different token
      compaction        the prompt became shorter by a tenth or more, or the log says that its history was rewritten

They add up to the prompt. Where a log shows lengths only, growth = max(0, in(S) - in(P)) over the earlier prompt P, and
fresh = growth - output(P), not below 0, is what neither P nor its answer had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# In the order in which they lie in a prompt, as far as it is known.
PIECES = (
    "cached", "caching_off", "expired", "evicted", "unexplained", "block_remainder", "prefix_changed", "compaction",
    "resent_output", "fresh",
)  # fmt: skip
LOST = PIECES[1:8]

INFINITE, SIZED, OFF, RECORDED = "infinite", "tokens", "off", "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache that is assumed."""

    kind: str = INFINITE  # INFINITE, SIZED, OFF; RECORDED: what the log says was reused
    tokens: int | None = None  # of SIZED
    ttl_ns: int | None = None
    block_tokens: int | None = None  # None: the log's own, else DEFAULT_BLOCK


DEFAULT_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of each request, as columns. `before_in` is -1 for the first of a session."""

    total: Ints
    before_in: Ints
    before_out: Ints
    reuse: Ints  # prefix in the cache, in whole tokens
    seen: Ints  # prefix that was computed before, at least `reuse`
    expired: Flags  # the cache lost the rest by age
    compaction: Flags  # the log says so
    moved: Ints  # behind `seen`, computed before at other places
    resent: Ints | None = None  # behind `seen`, written by a model; None: the log has lengths or prefix hashes only


def pieces_of(facts: Facts, cache: Cache, *, block: int, log_block: int) -> Ints:
    """One row per request, one column per PIECES; rows add up to `total`. log_block: of the log's ids, 1 without."""
    total, seen = facts.total, np.minimum(facts.seen, facts.total)
    found = np.zeros((len(total), len(PIECES)), dtype=np.int64)
    column = {name: found[:, i] for i, name in enumerate(PIECES)}
    reuse = np.minimum(facts.reuse, seen)
    whole = reuse if cache.kind == RECORDED else np.minimum(reuse, total - 1) // block * block
    column["cached"][:] = whole
    column["block_remainder"][:] = reuse - whole
    _past_the_cache(column, seen - reuse, facts, cache, block)
    rest = total - seen
    first = facts.before_in < 0
    shrunk = ~first & (shortened(total, facts.before_in) | facts.compaction)
    if facts.resent is not None:
        old, resent = facts.moved, facts.resent
        intact = np.zeros(len(total), dtype=np.bool_)
    else:
        covered = np.clip(np.minimum(facts.before_in, total) - seen, 0, None)
        old = np.minimum(np.maximum(np.where(first, 0, covered), facts.moved), rest)
        intact = (seen >= np.minimum(facts.before_in, total) // log_block * log_block) & (facts.moved == 0)
        resent = np.minimum(np.where(first, 0, facts.before_out), rest - old)
    shrunk &= ~intact
    column["block_remainder"][:] += np.where(intact, old, 0)
    column["compaction"][:] = np.where(shrunk, old, 0)
    column["prefix_changed"][:] = np.where(~intact & ~shrunk, old, 0)
    column["resent_output"][:] = resent
    column["fresh"][:] = rest - old - resent
    return found


def as_recorded(facts: Facts, told: Ints) -> Facts:
    """With what the provider says it reused, instead of a cache that is assumed."""
    seen = np.minimum(np.maximum(facts.seen, told), facts.total)
    moved = np.minimum(facts.moved, facts.total - seen)
    resent = None if facts.resent is None else np.minimum(facts.resent, facts.total - seen - moved)
    return replace(
        facts, reuse=np.minimum(told, facts.total), seen=seen, moved=moved, resent=resent,
        expired=np.zeros(len(told), dtype=np.bool_),
    )  # fmt: skip


def shortened(total: Ints, before_in: Ints) -> Flags:
    """Whether a prompt is so much shorter than the one before that its history was rewritten, not trimmed."""
    return total * 10 <= before_in * 9


def _past_the_cache(column: dict[str, Ints], lost: Ints, facts: Facts, cache: Cache, block: int) -> None:
    """Computed before, an unbroken prefix, and not in the cache."""
    if cache.kind == OFF:
        column["caching_off"][:] = lost
    elif cache.kind == RECORDED:
        small = lost < block  # a provider's own block
        column["block_remainder"][:] += np.where(small, lost, 0)
        column["unexplained"][:] = np.where(small, 0, lost)
    else:
        column["expired"][:] = np.where(facts.expired, lost, 0)
        column["evicted"][:] = np.where(facts.expired, 0, lost)
