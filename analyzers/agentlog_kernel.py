"""Compiled loops over the units of prompts: naming them by small numbers, and replaying them against a cache.

`state` arrays are indexed by a unit's number. Bits of `flags`: SEEN, a prompt had this unit once; CACHED, it is in the
cache now. Positions of the list of least recent use are numbers + 1; 0 is its end on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

SEEN, CACHED = 1, 2
PROMPT, ANSWER = 1, 2  # bits of what is said of a content: it stood in a prompt, a model wrote it
NO_TIME = -(1 << 62)

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


class Requests(NamedTuple):
    """A batch: request r has the units from offsets[r] to offsets[r + 1]. `content` is empty where the log has none."""

    offsets: Ints
    units: Small
    tokens: Small
    content: Small
    answer_offsets: Ints
    answers: Small
    inputs: Ints
    outputs: Ints
    starts: Ints  # ns; NO_TIME unknown
    sessions: Ints  # numbers, or -1: to be found, and put here


class CacheState(NamedTuple):
    """`flags` by the numbers of units. In a cache of limited size a unit has a slot while it is there; the arrays that
    follow `owners` are by slots then, so that they do not grow with the log. Without a limit `last_ns` is by units."""

    flags: Bytes
    slots: Small  # by units
    owners: Small  # units by slots
    last_ns: Ints
    sizes: Small
    newer: Small
    older: Small  # of a slot that is free: the next free one + 1
    ends: Ints  # newest + 1, oldest + 1, tokens in the cache, slots ever used, a free slot + 1
    said: Bytes  # by the numbers of contents


class SessionState(NamedTuple):
    """By the numbers of sessions; `tails` by units: session + 1 whose newest prompt ends there."""

    tails: Small
    inputs: Ints
    outputs: Ints
    turns: Ints


class Found(NamedTuple):
    """Per request: tokens of the prefix in the cache (`reuse`) and of the longest one computed before (`seen`); behind
    it, tokens computed before elsewhere (`moved`) or written by a model (`resent`); input and output of the session's
    request before (-1: none); turn; unit at which the prompt breaks (-1: it does not); lost by age."""

    reuse: Ints
    seen: Ints
    moved: Ints
    resent: Ints
    before_in: Ints
    before_out: Ints
    turns: Ints
    broken: Ints
    expired: npt.NDArray[np.bool_]


def _compiled(function: Callable[..., Any]) -> Any:
    """Compiled on first use and kept on disk; where no place is writable, compiled in every process."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except (RuntimeError, OSError):
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def number_names(names, keys, slots, used, numbers):  # type: ignore[no-untyped-def]
    """Numbers of 64-bit `names`, new ones from `used` on; returns how many there are then.

    `slots` is an open-addressing table of numbers + 1 with a power of two of entries, `keys` the names by number; both
    have room for all names to be new.
    """
    mask = len(slots) - 1
    for i in range(len(names)):
        value = names[i]
        place = value * -7046029254386353131
        place ^= (place >> 32) & 0xFFFFFFFF
        place &= mask
        while slots[place] != 0 and keys[slots[place] - 1] != value:
            place = (place + 1) & mask
        if slots[place] == 0:
            keys[used] = value
            used += 1
            slots[place] = used
        numbers[i] = slots[place] - 1
    return used


@_compiled
def place_numbers(keys, used, slots):  # type: ignore[no-untyped-def]
    """Fill the empty table `slots` with the numbers of the first `used` keys."""
    mask = len(slots) - 1
    for number in range(used):
        place = keys[number] * -7046029254386353131
        place ^= (place >> 32) & 0xFFFFFFFF
        place &= mask
        while slots[place] != 0:
            place = (place + 1) & mask
        slots[place] = number + 1


@_compiled
def _unlink(number, newer, older, ends):  # type: ignore[no-untyped-def]
    before, after = newer[number], older[number]
    if before:
        older[before - 1] = after
    else:
        ends[0] = after
    if after:
        newer[after - 1] = before
    else:
        ends[1] = before


@_compiled
def _to_front(number, newer, older, ends):  # type: ignore[no-untyped-def]
    newer[number] = 0
    older[number] = ends[0]
    if ends[0]:
        newer[ends[0] - 1] = number + 1
    else:
        ends[1] = number + 1
    ends[0] = number + 1


@_compiled
def _prefix(r, requests, cache, found, ttl_ns, capacity):  # type: ignore[no-untyped-def]
    """How far request r's prompt is in the cache, and was computed before; returns the first unit that never was."""
    low, high = requests.offsets[r], requests.offsets[r + 1]
    start = requests.starts[r]
    aged = ttl_ns >= 0 and start != NO_TIME
    i, got = low, 0
    found.expired[r] = False
    while i < high and cache.flags[requests.units[i]] & CACHED and capacity != 0:
        if aged:
            last = cache.last_ns[cache.slots[requests.units[i]] if capacity > 0 else requests.units[i]]
            if last != NO_TIME and start - last > ttl_ns:
                found.expired[r] = True
                break
        got += requests.tokens[i]
        i += 1
    found.reuse[r] = got
    while i < high and cache.flags[requests.units[i]] & SEEN:
        got += requests.tokens[i]
        i += 1
    found.seen[r] = got
    found.broken[r] = i - low if i < high else -1
    return i


@_compiled
def _behind(r, begin, requests, cache, found):  # type: ignore[no-untyped-def]
    """What behind the break was computed before, or written by a model."""
    known = len(requests.content) > 0
    moved = resent = 0
    for k in range(begin, requests.offsets[r + 1]):
        said = cache.said[requests.content[k]] if known else cache.flags[requests.units[k]] & SEEN
        if said & PROMPT:
            moved += requests.tokens[k]
        elif said & ANSWER:
            resent += requests.tokens[k]
    found.moved[r], found.resent[r] = moved, resent


@_compiled
def _session_of(r, end, requests, sessions, block, count):  # type: ignore[no-untyped-def]
    """The session whose newest prompt, to its last whole unit, this prompt begins with: the longest such. A new one
    where there is none. `end`: the first unit that was never computed before."""
    low, high = requests.offsets[r], requests.offsets[r + 1]
    k = end - 1
    while k >= low and sessions.tails[requests.units[k]] == 0:
        k -= 1
    session = count
    if k >= low:
        session = sessions.tails[requests.units[k]] - 1
        sessions.tails[requests.units[k]] = 0
    whole = min(high - low, requests.inputs[r] // block) if block > 0 else high - low
    if whole > 0:
        sessions.tails[requests.units[low + whole - 1]] = session + 1
    return session


@_compiled
def _slot_of(unit, there, tokens, cache):  # type: ignore[no-untyped-def]
    """The unit's slot, now the newest."""
    if there:
        at = cache.slots[unit]
        _unlink(at, cache.newer, cache.older, cache.ends)
    else:
        if cache.ends[4] > 0:
            at = cache.ends[4] - 1
            cache.ends[4] = cache.older[at]
        else:
            at = cache.ends[3]
            cache.ends[3] += 1
        cache.slots[unit] = at
        cache.owners[at] = unit
        cache.sizes[at] = tokens
        cache.ends[2] += tokens
    _to_front(at, cache.newer, cache.older, cache.ends)
    return at


@_compiled
def _touch(r, requests, cache, capacity, ttl_ns):  # type: ignore[no-untyped-def]
    """The prompt is in the cache now. Its head is touched last, so that its tail is thrown out first, as engines do."""
    start = requests.starts[r]
    for k in range(requests.offsets[r + 1] - 1, requests.offsets[r] - 1, -1):
        u = requests.units[k]
        there = cache.flags[u] & CACHED != 0
        at = _slot_of(u, there, requests.tokens[k], cache) if capacity > 0 else u
        if ttl_ns >= 0 and (start != NO_TIME or not there):
            cache.last_ns[at] = start
        cache.flags[u] |= SEEN | CACHED
        if len(requests.content) > 0:
            cache.said[requests.content[k]] |= PROMPT
    for k in range(requests.answer_offsets[r], requests.answer_offsets[r + 1]):
        cache.said[requests.answers[k]] |= ANSWER
    while capacity > 0 and cache.ends[2] > capacity:
        at = cache.ends[1] - 1
        _unlink(at, cache.newer, cache.older, cache.ends)
        cache.flags[cache.owners[at]] &= SEEN
        cache.ends[2] -= cache.sizes[at]
        cache.older[at] = cache.ends[4]
        cache.ends[4] = at + 1


@_compiled
def replay(requests, cache, sessions, found, block, capacity, ttl_ns, count):  # type: ignore[no-untyped-def]
    """One pass over a batch. Returns the number of sessions then, of which there were `count`.

    capacity: tokens, -1 without end, 0 for no cache. ttl_ns: -1 without end. block: tokens of a whole unit, 0: any.
    """
    for r in range(len(requests.inputs)):
        end = _prefix(r, requests, cache, found, ttl_ns, capacity)
        _behind(r, end, requests, cache, found)
        s = requests.sessions[r]
        if s < 0:
            s = _session_of(r, end, requests, sessions, block, count)
            requests.sessions[r] = s
        count = max(count, s + 1)
        later = sessions.turns[s] > 0
        found.turns[r] = sessions.turns[s]
        found.before_in[r] = sessions.inputs[s] if later else -1
        found.before_out[r] = sessions.outputs[s] if later else 0
        sessions.inputs[s], sessions.outputs[s] = requests.inputs[r], requests.outputs[r]
        sessions.turns[s] += 1
        _touch(r, requests, cache, capacity, ttl_ns)
    return count


@_compiled
def gather(sessions, values, sums):  # type: ignore[no-untyped-def]
    """Add the rows of `values` to the rows of `sums` that their sessions have; late sessions share the last row."""
    last = len(sums) - 1
    for r in range(len(sessions)):
        s = min(sessions[r], last)
        for c in range(values.shape[1]):
            sums[s, c] += values[r, c]


@_compiled
def held_prefixes(sessions, seen, inputs, capacity, held, newer, older, ends, reuse):  # type: ignore[no-untyped-def]
    """Of each request's `seen` tokens, those still in a cache of `capacity` tokens that throws out the ends of the
    contexts least recently used. `held`: tokens of each session's context in the cache. ends: newest, oldest, tokens."""
    for r in range(len(sessions)):
        s = sessions[r]
        reuse[r] = min(seen[r], held[s])
        if held[s] > 0:
            _unlink(s, newer, older, ends)
        ends[2] += inputs[r] - held[s]
        held[s] = inputs[r]
        _to_front(s, newer, older, ends)
        while ends[2] > capacity:
            v = ends[1] - 1
            cut = min(held[v], ends[2] - capacity)
            held[v] -= cut
            ends[2] -= cut
            if held[v] == 0:
                _unlink(v, newer, older, ends)
