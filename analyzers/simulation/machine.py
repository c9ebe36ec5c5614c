"""One server, step by step, compiled: continuous batching as vLLM's engine (version 1) schedules it.

A step takes the running requests in order, each with its next token or its next chunk of prompt, while tokens of the
budget are left; where the cache is full, the request that was admitted last gives up its pages and will be computed
again. If none had to, waiting requests are admitted in order while budget, slots and pages for their whole text last.

All times are ns from the first arrival of the log. Everything that changes lies in arrays, so that a run can be
interrupted after any number of steps. Scalars are in `state`, under the names below.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from analyzers.simulation.arrays import Floats, Ints

Function = TypeVar("Function", bound=Callable[..., Any])

NS = 1_000_000_000
# Features of a step (steptime.py); behind them, three per sliding window: context of prefill, pairs of prefill, context of
# decode. They stand here because numba's cache is only renewed when the file of the compiled code changes.
PRESENT, SAMPLED, SAMPLING, P_TOKENS, P_KV, P_PAIRS, D_TOKENS, D_KV, REACHED = range(9)
N_FEATURES, PER_WINDOW = 9, 3
(
    CLOCK, RUNNING, QUEUE_HEAD, QUEUED, PENDING, GAPS, STEPS, BUSY_NS, HOST_NS, PREEMPTIONS, PREFILLED, RECOMPUTED,
    DECODED, PEAK_PAGES, FREE, EVICTABLE, LRU_HEAD, LRU_TAIL, N_STATE,
) = range(19)  # fmt: skip
# Rows of arrays; what they are is said in arrays.py.
PROMPT, OUTPUT, FOLLOWS, WAIT_NS, REFUSED, BLOCKS_FROM, BLOCKS_TO = range(7)
ARRIVAL, SCHEDULED, FIRST, FINISH, COMPUTED, HIGHEST, GENERATED, CACHED, PREEMPTED, HELD, SHARED = range(11)
ID, USED = range(2)
THERE, USERS, BEFORE, BEHIND = range(4)
WHO, CHUNK = range(2)
WAITING, DUE, DUE_ID = range(3)
COMPUTE, MEMORY = range(2)
COMM_NS, MISSED, REPLICAS = range(3)
SEQS, TOKENS, PAGES, PAGE_TOKENS, BLOCK_TOKENS, HOST, WINDOW = range(7)
# What a slice of a run ends with.
DONE, MORE, GROW, TOO_SLOW = range(4)
LONGEST_STEP_NS = 600 * NS


def compiled(function: Function) -> Function:
    """With a cache beside the code where one can be written, else anew in each process."""
    try:
        made = numba.njit(cache=True, error_model="numpy")(function)
    except (RuntimeError, OSError, EOFError, pickle.PickleError):
        made = numba.njit(error_model="numpy")(function)
    return made  # type: ignore[no-any-return]


@compiled
def run(
    load: Ints, lives: Ints, blocks: Ints, cache: Ints, batch: Ints, queue: Ints, kernels: Floats, factors: Floats,
    windows: Ints, limits: Ints, seconds: Ints, by_batch: Ints, pages_ns: Floats, gaps: Ints, state: Ints, steps: int,
) -> int:  # fmt: skip
    """Advance by at most `steps` steps. GROW: `seconds` is too short for what comes next."""
    features = np.zeros(N_FEATURES + PER_WINDOW * len(windows))
    for _ in range(steps):
        if state[CLOCK] + 2 * LONGEST_STEP_NS > len(seconds) * NS:
            return GROW
        while state[PENDING] and queue[DUE, 0] <= state[CLOCK]:
            _arrive(load, lives, queue, limits, state)
        if state[RUNNING] == 0 and state[QUEUED] == 0:
            if state[PENDING] == 0:
                return DONE
            gaps[0, state[GAPS]], gaps[1, state[GAPS]] = state[CLOCK], queue[DUE, 0]
            state[GAPS] += 1
            state[CLOCK] = queue[DUE, 0]
            continue
        _schedule(load, lives, blocks, cache, batch, queue, limits, state)
        busy = _duration(load, lives, batch, kernels, factors, windows, features, state)
        if busy > LONGEST_STEP_NS:
            return TOO_SLOW
        _count(limits, seconds, by_batch, pages_ns, state, busy)
        state[CLOCK] += limits[HOST] + busy
        _advance(load, lives, blocks, cache, batch, queue, limits, state)
    return MORE


@compiled
def push(queue: Ints, state: Ints, when: int, request: int) -> None:
    """Into the heap of arrivals: by time, then by number."""
    at = state[PENDING]
    state[PENDING] += 1
    while at > 0:
        parent = (at - 1) // 2
        if queue[DUE, parent] < when or (queue[DUE, parent] == when and queue[DUE_ID, parent] < request):
            break
        queue[DUE, at], queue[DUE_ID, at] = queue[DUE, parent], queue[DUE_ID, parent]
        at = parent
    queue[DUE, at], queue[DUE_ID, at] = when, request


@compiled
def _pop(queue: Ints, state: Ints) -> int:
    first = queue[DUE_ID, 0]
    state[PENDING] -= 1
    size = state[PENDING]
    when, request = queue[DUE, size], queue[DUE_ID, size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and (
            queue[DUE, child + 1] < queue[DUE, child]
            or (queue[DUE, child + 1] == queue[DUE, child] and queue[DUE_ID, child + 1] < queue[DUE_ID, child])
        ):
            child += 1
        if when < queue[DUE, child] or (when == queue[DUE, child] and request < queue[DUE_ID, child]):
            break
        queue[DUE, at], queue[DUE_ID, at] = queue[DUE, child], queue[DUE_ID, child]
        at = child
    if size:
        queue[DUE, at], queue[DUE_ID, at] = when, request
    return int(first)


@compiled
def _arrive(load: Ints, lives: Ints, queue: Ints, limits: Ints, state: Ints) -> None:
    when = queue[DUE, 0]
    request = _pop(queue, state)
    lives[ARRIVAL, request] = when
    if load[REFUSED, request]:
        _next_turn(load, queue, limits, state, request, when)
        return
    queue[WAITING, (state[QUEUE_HEAD] + state[QUEUED]) % queue.shape[1]] = request
    state[QUEUED] += 1


@compiled
def _next_turn(load: Ints, queue: Ints, limits: Ints, state: Ints, request: int, done: int) -> None:
    """It comes when the wait is over, if that is still within the window."""
    if load[FOLLOWS, request] >= 0 and done + load[WAIT_NS, request] < limits[WINDOW]:
        push(queue, state, done + load[WAIT_NS, request], load[FOLLOWS, request])


@compiled
def _schedule(
    load: Ints, lives: Ints, blocks: Ints, cache: Ints, batch: Ints, queue: Ints, limits: Ints, state: Ints
) -> None:
    """Fill `chunk` for the running requests, and admit waiting ones."""
    budget, at, gave_up = limits[TOKENS], 0, False
    while at < state[RUNNING] and budget > 0:
        request = batch[WHO, at]
        tokens = min(budget, load[PROMPT, request] + lives[GENERATED, request] - lives[COMPUTED, request])
        fits = True
        while not _take(load, lives, blocks, cache, limits, state, request, tokens):
            gave_up = True
            last = batch[WHO, state[RUNNING] - 1]
            _give_up(load, lives, blocks, cache, batch, queue, limits, state)
            if last == request:
                fits = False
                break
        if not fits:
            break
        batch[CHUNK, at] = tokens
        budget -= tokens
        at += 1
    for idle in range(at, state[RUNNING]):
        batch[CHUNK, idle] = 0
    while not gave_up and budget > 0 and state[QUEUED] and state[RUNNING] < limits[SEQS]:
        request = queue[WAITING, state[QUEUE_HEAD]]
        if not _admit(load, lives, blocks, cache, limits, state, request):
            break
        state[QUEUE_HEAD] = (state[QUEUE_HEAD] + 1) % queue.shape[1]
        state[QUEUED] -= 1
        tokens = min(budget, load[PROMPT, request] + lives[GENERATED, request] - lives[COMPUTED, request])
        _take(load, lives, blocks, cache, limits, state, request, tokens)
        if lives[SCHEDULED, request] < 0:
            lives[SCHEDULED, request] = state[CLOCK]
        batch[WHO, state[RUNNING]], batch[CHUNK, state[RUNNING]] = request, tokens
        state[RUNNING] += 1
        budget -= tokens


@compiled
def _admit(load: Ints, lives: Ints, blocks: Ints, cache: Ints, limits: Ints, state: Ints, request: int) -> bool:
    """Take over the blocks that are there, if the pages for the whole text are to be had."""
    tokens = load[PROMPT, request] + lives[GENERATED, request]
    start, end = load[BLOCKS_FROM, request], load[BLOCKS_TO, request]
    hits, unused = 0, 0
    while start + hits < end and (hits + 1) * limits[BLOCK_TOKENS] < tokens and cache[THERE, blocks[ID, start + hits]]:
        unused += cache[USERS, blocks[ID, start + hits]] == 0
        hits += 1
    per = limits[BLOCK_TOKENS] // limits[PAGE_TOKENS]
    need = -(-tokens // limits[PAGE_TOKENS]) - hits * per
    if need > state[FREE] + state[EVICTABLE] - unused * per:
        return False
    for i in range(start, start + hits):
        if cache[USERS, blocks[ID, i]] == 0:
            _unlink(cache, state, blocks[ID, i])
            state[EVICTABLE] -= per
        cache[USERS, blocks[ID, i]] += 1
        blocks[USED, i] = True
    lives[SHARED, request] = hits
    lives[COMPUTED, request] = hits * limits[BLOCK_TOKENS]
    fresh = lives[COMPUTED, request] - lives[HIGHEST, request]
    if fresh > 0:
        lives[CACHED, request] += fresh
        lives[HIGHEST, request] = lives[COMPUTED, request]
    return True


@compiled
def _take(
    load: Ints, lives: Ints, blocks: Ints, cache: Ints, limits: Ints, state: Ints, request: int, tokens: int
) -> bool:  # fmt: skip
    """Pages for `tokens` more tokens; full blocks of the prompt become common property, as engines do at this time."""
    per = limits[BLOCK_TOKENS] // limits[PAGE_TOKENS]
    reached = lives[COMPUTED, request] + tokens
    need = -(-reached // limits[PAGE_TOKENS]) - lives[HELD, request] - lives[SHARED, request] * per
    if need > state[FREE] + state[EVICTABLE]:
        return False
    while state[FREE] < need:
        oldest = state[LRU_HEAD]
        _unlink(cache, state, oldest)
        cache[THERE, oldest] = False
        state[EVICTABLE] -= per
        state[FREE] += per
    state[FREE] -= max(need, 0)
    lives[HELD, request] += max(need, 0)
    if limits[BLOCK_TOKENS]:
        start = load[BLOCKS_FROM, request]
        first = lives[COMPUTED, request] // limits[BLOCK_TOKENS]
        last = min(reached // limits[BLOCK_TOKENS], load[BLOCKS_TO, request] - start)
        for i in range(start + first, start + last):
            if not blocks[USED, i] and not cache[THERE, blocks[ID, i]]:
                cache[THERE, blocks[ID, i]] = True
                cache[USERS, blocks[ID, i]] = 1
                blocks[USED, i] = True
                lives[SHARED, request] += 1
                lives[HELD, request] -= per
    return True


@compiled
def _release(load: Ints, lives: Ints, blocks: Ints, cache: Ints, limits: Ints, state: Ints, request: int) -> None:
    """All pages; blocks without further users may be evicted, the deepest first."""
    per = limits[BLOCK_TOKENS] // limits[PAGE_TOKENS]
    for i in range(load[BLOCKS_TO, request] - 1, load[BLOCKS_FROM, request] - 1, -1):
        if blocks[USED, i]:
            blocks[USED, i] = False
            cache[USERS, blocks[ID, i]] -= 1
            if cache[USERS, blocks[ID, i]] == 0:
                _append(cache, state, blocks[ID, i])
                state[EVICTABLE] += per
    state[FREE] += lives[HELD, request]
    lives[HELD, request] = 0
    lives[SHARED, request] = 0


@compiled
def _give_up(
    load: Ints, lives: Ints, blocks: Ints, cache: Ints, batch: Ints, queue: Ints, limits: Ints, state: Ints
) -> None:
    """The request that was admitted last goes back to the head of the queue."""
    state[RUNNING] -= 1
    request = batch[WHO, state[RUNNING]]
    _release(load, lives, blocks, cache, limits, state, request)
    lives[COMPUTED, request] = 0
    lives[PREEMPTED, request] += 1
    state[PREEMPTIONS] += 1
    state[QUEUE_HEAD] = (state[QUEUE_HEAD] - 1) % queue.shape[1]
    queue[WAITING, state[QUEUE_HEAD]] = request
    state[QUEUED] += 1


@compiled
def _unlink(cache: Ints, state: Ints, block: int) -> None:
    before, behind = cache[BEFORE, block], cache[BEHIND, block]
    if before < 0:
        state[LRU_HEAD] = behind
    else:
        cache[BEHIND, before] = behind
    if behind < 0:
        state[LRU_TAIL] = before
    else:
        cache[BEFORE, behind] = before


@compiled
def _append(cache: Ints, state: Ints, block: int) -> None:
    cache[BEFORE, block], cache[BEHIND, block] = state[LRU_TAIL], -1
    if state[LRU_TAIL] < 0:
        state[LRU_HEAD] = block
    else:
        cache[BEHIND, state[LRU_TAIL]] = block
    state[LRU_TAIL] = block


@compiled
def _duration(
    load: Ints, lives: Ints, batch: Ints, kernels: Floats, factors: Floats, windows: Ints, features: Floats, state: Ints
) -> int:
    """Of the step that `chunk` describes, ns."""
    features[:] = 0.0
    for at in range(state[RUNNING]):
        q = batch[CHUNK, at]
        if q == 0:
            continue
        request = batch[WHO, at]
        k = lives[COMPUTED, request] + q
        features[SAMPLED] += k == load[PROMPT, request] + lives[GENERATED, request]
        decodes = q == 1 and lives[GENERATED, request] > 0 and k == load[PROMPT, request] + lives[GENERATED, request]
        if decodes:
            features[D_TOKENS] += 1
            features[D_KV] += k
        else:
            features[P_TOKENS] += q
            features[P_KV] += k
            features[P_PAIRS] += float(q) * k - float(q) * q / 2  # the triangle as `costs.attention` takes it
        for i in range(len(windows)):
            _windowed(features, N_FEATURES + PER_WINDOW * i, float(windows[i]), float(q), float(k), decodes)
    tokens = features[P_TOKENS] + features[D_TOKENS]
    features[PRESENT] = 1.0
    features[SAMPLING] = 1.0 if features[SAMPLED] > 0 else 0.0
    features[REACHED] = 1 - factors[MISSED] ** (tokens * factors[REPLICAS])
    total = factors[COMM_NS] * tokens
    for kernel in range(kernels.shape[1]):
        compute, memory = 0.0, 0.0
        for i in range(len(features)):
            compute += kernels[COMPUTE, kernel, i] * features[i]
            memory += kernels[MEMORY, kernel, i] * features[i]
        total += max(compute, memory)
    whole: int = round(min(total, 2.0 * LONGEST_STEP_NS))
    return whole


@compiled
def _windowed(features: Floats, at: int, window: float, q: float, k: float, decodes: bool) -> None:
    """As `costs.attention` counts a window: its cache, and its query-key pairs."""
    reach = min(k, window + q - 1)
    if decodes:
        features[at + 2] += reach
        return
    before = k - q
    growing = min(max(window - before, 0.0), q)
    features[at] += reach
    features[at + 1] += growing * (before + growing) - growing * growing / 2 + (q - growing) * window


@compiled
def _count(limits: Ints, seconds: Ints, by_batch: Ints, pages_ns: Floats, state: Ints, busy: int) -> None:
    """What lies inside the window: host time, then the device's."""
    state[STEPS] += 1
    start = min(state[CLOCK] + limits[HOST], limits[WINDOW])
    end = min(state[CLOCK] + limits[HOST] + busy, limits[WINDOW])
    state[HOST_NS] += max(start - state[CLOCK], 0)
    state[BUSY_NS] += end - start
    pages = limits[PAGES] - state[FREE] - state[EVICTABLE]
    state[PEAK_PAGES] = max(state[PEAK_PAGES], pages)
    by_batch[state[RUNNING]] += end - start
    pages_ns[0] += float(pages) * float(end - start)
    while start < end:
        second = start // NS
        part = min(end, (second + 1) * NS) - start
        seconds[second] += part
        start += part


@compiled
def _advance(
    load: Ints, lives: Ints, blocks: Ints, cache: Ints, batch: Ints, queue: Ints, limits: Ints, state: Ints
) -> None:
    """The step is over: tokens are computed, sampled and sent; who is done leaves."""
    kept = 0
    for at in range(state[RUNNING]):
        request, q = batch[WHO, at], batch[CHUNK, at]
        before = lives[COMPUTED, request]
        lives[COMPUTED, request] = before + q
        text = load[PROMPT, request] + lives[GENERATED, request]
        again = min(max(lives[HIGHEST, request] - before, 0), q)
        prompt = max(min(before + q, load[PROMPT, request]) - max(before, lives[HIGHEST, request]), 0)
        state[RECOMPUTED] += again
        state[PREFILLED] += prompt
        state[DECODED] += q - again - prompt  # the newest token may come as the end of what is computed again
        lives[HIGHEST, request] = max(lives[HIGHEST, request], before + q)
        if q and before + q == text:
            lives[GENERATED, request] += 1
            if lives[FIRST, request] < 0:
                lives[FIRST, request] = state[CLOCK]
            if lives[GENERATED, request] == load[OUTPUT, request]:
                lives[FINISH, request] = state[CLOCK]
                _release(load, lives, blocks, cache, limits, state, request)
                _next_turn(load, queue, limits, state, request, state[CLOCK])
                continue
        batch[WHO, kept] = request
        kept += 1
    state[RUNNING] = kept
