"""What of a prompt had been computed before, and why it was computed again (method §9). Pure; works on keys of prompts.

A prompt of n tokens is cut at
    C   what the engine reused, by its own count
    R   the longest prefix that this replica had computed when the request was scheduled, A the same over all replicas
Before A the text had been computed as a prefix, so [C, A) is lost: to caching that is off, else to another replica (from R
on), to eviction (up to R's last full block), to the rest of that block. Behind A nothing could be reused as a prefix: what
is the end of a message that had been sent before is lost to the changed prefix, what the model itself had said and comes
back is re-sent output, and the rest is fresh.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Times = NDArray[np.int64]

# So many tokens in a row have to agree with earlier text before they count as the same: a last word or a template's own
# tokens are alike everywhere.
LEAST_RUN = 16
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What is known of the prefix cache. Tokens."""

    enabled: bool | None
    block_tokens: int | None  # what is reused is a multiple of it
    capacity_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """One request's context. `computed_ns`: its prompt is in the cache; `output_ns`: its output, less the last token, too."""

    request_id: str
    session: str | None
    replica: int
    scheduled_ns: int
    computed_ns: int
    output_ns: int
    tokens: int
    cached: int
    prefix_keys: Keys  # of prompt and output
    tail_keys: Keys | None  # of the prompt
    starts: tuple[int, ...] = ()  # of segments
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a prompt; see table `reuse`."""

    request_id: str
    piece: str
    cause: str | None
    start: int
    tokens: int
    role: str | None
    divergence: int | None = None
    divergence_role: str | None = None
    detail: str | None = None


class _Known:
    """When each key was first there."""

    def __init__(self, keys: Sequence[Keys], times: Sequence[Times]) -> None:
        every = np.concatenate(keys) if keys else np.zeros(0, dtype=np.uint64)
        when = np.concatenate(times) if times else np.zeros(0, dtype=np.int64)
        order = np.lexsort((when, every))
        self._keys, first = np.unique(every[order], return_index=True)
        self._times: Times = when[order][first]

    def since(self, keys: Keys) -> Times:
        """First time of each key; NEVER where it never was."""
        if not len(self._keys):
            return np.full(len(keys), NEVER)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        times: Times = np.where(self._keys[at] == keys, self._times[at], NEVER)
        return times


def account(prompts: Sequence[Prompt], cache: Cache) -> Iterator[Piece]:
    """Pieces of every prompt, in order. All prompts share one cache per replica: no salt keeps them apart."""
    ordered = sorted(prompts, key=lambda item: item.scheduled_ns)
    everywhere = _prefixes(ordered)
    each = {
        replica: _prefixes([p for p in ordered if p.replica == replica]) for replica in {p.replica for p in ordered}
    }
    tails = _Known(
        [p.tail_keys for p in ordered if p.tail_keys is not None],
        [np.full(p.tokens, p.computed_ns) for p in ordered if p.tail_keys is not None],
    )
    lengths = [
        (_leading(everywhere, p), _leading(everywhere if len(each) == 1 else each[p.replica], p)) for p in ordered
    ]
    never = _never_hit(ordered, [own for _, own in lengths], cache)
    before: dict[str, Prompt] = {}
    for prompt, (anywhere, own) in zip(ordered, lengths, strict=True):
        earlier = before.get(prompt.session) if prompt.session is not None else None
        cuts = _Cuts(prompt=prompt, cache=cache, anywhere=anywhere, own=own, off=never)
        yield from cuts.prefix()
        yield from _behind(prompt, max(prompt.cached, anywhere), tails, earlier)
        if prompt.session is not None:
            before[prompt.session] = prompt


def _prefixes(prompts: Sequence[Prompt]) -> _Known:
    """The last output token is never computed: nothing follows it."""
    whole = [p.prefix_keys[: max(p.tokens, len(p.prefix_keys) - 1)] for p in prompts]
    times = [
        np.where(np.arange(len(keys)) < p.tokens, p.computed_ns, p.output_ns)
        for p, keys in zip(prompts, whole, strict=True)
    ]
    return _Known(whole, times)


def _leading(known: _Known, prompt: Prompt) -> int:
    """Tokens of the longest prefix that was there when the prompt was scheduled."""
    missing = np.flatnonzero(known.since(prompt.prefix_keys[: prompt.tokens]) > prompt.scheduled_ns)
    return int(missing[0]) if len(missing) else prompt.tokens


def _never_hit(prompts: Sequence[Prompt], own: Sequence[int], cache: Cache) -> bool:
    """Nothing was ever reused, though three times a whole block was there and nothing can have pushed it out."""
    if cache.enabled is False:
        return True
    if cache.block_tokens is None or cache.capacity_tokens is None or any(p.cached for p in prompts):
        return False
    block = cache.block_tokens
    chances = sum(min(length, p.tokens - 1) >= block for p, length in zip(prompts, own, strict=True))
    # blocks that a request shares with nobody, rounded up
    used = sum(-(-len(p.prefix_keys) // block) * block for p in prompts)
    return chances >= 3 and used <= cache.capacity_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Where the part of a prompt that had been computed as a prefix is cut."""

    prompt: Prompt
    cache: Cache
    anywhere: int  # tokens
    own: int
    off: bool

    def prefix(self) -> Iterator[Piece]:
        """Cached, and lost as a prefix."""
        prompt = self.prompt
        yield from _pieces(prompt, 0, prompt.cached, "cached", None, None)
        at = prompt.cached
        for cause, upto, detail in self._lost():
            end = min(upto, prompt.tokens)
            if end > at:
                yield from _pieces(prompt, at, end, "lost", cause, detail)
                at = end

    def _lost(self) -> list[tuple[str | None, int, str | None]]:
        if self.off:
            how = "switched off" if self.cache.enabled is False else "configured on, but nothing was ever reused"
            return [("caching_off", self.anywhere, how)]
        block = self.cache.block_tokens
        if block is None:
            return [(None, self.own, "the block size is not known"), ("other_replica", self.anywhere, None)]
        full = min(self.own, self.prompt.tokens - 1) // block * block  # the last token is always computed
        return [
            ("evicted", full, None),
            ("block_remainder", self.own, f"blocks of {block} tokens"),
            ("other_replica", self.anywhere, None),
        ]


def _pieces(
    prompt: Prompt, start: int, end: int, piece: str, cause: str | None, detail: str | None,
    divergence: tuple[int, str | None] | None = None,
) -> Iterator[Piece]:  # fmt: skip
    """[start, end) cut at the segments, so that each piece lies in one role."""
    inner = [at for at in prompt.starts if start < at < end]
    bounds = [start, *inner, end]
    for a, b in itertools.pairwise(bounds):
        if b > a:
            yield Piece(
                request_id=prompt.request_id, piece=piece, cause=cause, start=a, tokens=b - a, role=role_at(prompt, a),
                divergence=divergence[0] if divergence else None, divergence_role=divergence[1] if divergence else None,
                detail=detail,
            )  # fmt: skip


def role_at(prompt: Prompt, token: int) -> str | None:
    """Role of the segment that holds `token`; None where segments are not known."""
    if not prompt.starts or token >= prompt.tokens:
        return None
    return prompt.roles[int(np.searchsorted(prompt.starts, token, side="right")) - 1]


def _behind(prompt: Prompt, start: int, tails: _Known, earlier: Prompt | None) -> Iterator[Piece]:
    """What lies behind the longest known prefix, [start, tokens)."""
    if start >= prompt.tokens:
        return
    if prompt.tail_keys is None:
        yield from _pieces(prompt, start, prompt.tokens, "fresh", None, "messages not located: some of it may be lost")
        return
    seen = _runs(tails.since(prompt.tail_keys[start:]) <= prompt.scheduled_ns)
    kinds = np.where(seen, 2, np.where(_said(prompt, start, earlier), 1, 0))
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    why = _why(prompt, start, earlier, seen) if seen.any() else None
    for a, b in itertools.pairwise(edges):
        kind = int(kinds[a])
        if kind == 2:
            yield from _pieces(
                prompt, start + a, start + b, "lost", "prefix_changed", why, (start, role_at(prompt, start))
            )
        else:
            yield from _pieces(prompt, start + a, start + b, "resent_output" if kind else "fresh", None, None)


def _runs(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Only what is True for LEAST_RUN in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
    kept = np.zeros(len(seen), dtype=bool)
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        kept[a:b] = b - a >= LEAST_RUN
    return kept


def _said(prompt: Prompt, start: int, earlier: Prompt | None) -> NDArray[np.bool_]:
    """Tokens from `start` on that repeat what the model said: of the assistant, in a conversation that goes on. The
    template's opening of the next answer is not, nor are examples in a first prompt."""
    said = np.zeros(prompt.tokens - start, dtype=bool)
    if earlier is None:
        return said
    ends = (*prompt.starts[1:], prompt.tokens)
    for role, a, b in list(zip(prompt.roles, prompt.starts, ends, strict=True))[:-1]:
        if role == "assistant" and b > start:
            said[max(a - start, 0) : b - start] = True
    return said


def _why(prompt: Prompt, start: int, earlier: Prompt | None, seen: NDArray[np.bool_]) -> str | None:
    """What can be told of a break at token `start`."""
    at = int(np.searchsorted(prompt.starts, start, side="right")) - 1
    role, end = prompt.roles[at], (*prompt.starts[1:], prompt.tokens)[at]
    length = end - prompt.starts[at]
    if earlier is None or not earlier.starts:
        return f"differs from earlier sessions in {_part(role, at)}"
    old_ends = (*earlier.starts[1:], earlier.tokens)
    same = at < len(earlier.roles) and earlier.roles[at] == role
    old_length = old_ends[at] - earlier.starts[at] if at < len(earlier.roles) else 0
    if len(prompt.roles) < len(earlier.roles):
        return "compaction: fewer messages than the turn before"
    if role == "tools":
        return "tools in another order" if same and old_length == length else "tools changed"
    if role == "assistant" and same and old_length > length:
        return "the model's earlier answer comes back shorter, as when reasoning is dropped"
    if role == "assistant" and start >= earlier.tokens:
        return "the model's answer comes back as other tokens"
    changed_inside = bool(seen[: max(0, end - start)].any())
    if role == "system" and (changed_inside or (same and abs(old_length - length) <= LEAST_RUN)):
        return "volatile text in the system prompt"
    return (
        f"{_part(role, at)} was edited"
        if same
        else f"{_part(role, at)} stands where {_part(earlier.roles[at], at)} stood"
        if at < len(earlier.roles)
        else None
    )


def _part(role: str, at: int) -> str:
    return {"system": "the system prompt", "tools": "the tools"}.get(role, f"{role} message (segment {at})")
