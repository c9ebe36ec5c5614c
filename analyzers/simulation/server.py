"""One server's run: arrays for the machine, and what it did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.simulation import machine
from analyzers.simulation.arrays import Costs, Ints
from analyzers.simulation.pool import LONGEST_NS, Share
from analyzers.simulation.setting import Setting
from analyzers.simulation.steptime import StepTime
from traces.clock import NS_PER_S
from traces.errors import UsageProblem

UNLIMITED = 1 << 62
_STEPS_AT_ONCE = 200_000  # ctrl-C is heard in between
_FIRST_SECONDS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """What one server did. ns from the first arrival of the log; −1: never."""

    share: Share
    arrival_ns: Ints  # per request
    scheduled_ns: Ints
    first_ns: Ints
    finish_ns: Ints
    cached: Ints  # tokens
    preempted: Ints
    busy_ns: NDArray[np.int32]  # per second, up to the last step
    batch_ns: Ints  # busy ns per number of running requests
    pages_ns: float  # Σ pages in use × busy ns
    gaps: Ints  # (gaps, 2): no request waits or runs
    end_ns: int  # of the last step
    steps: int
    device_ns: int
    host_ns: int
    prefilled: int  # tokens computed for the first time
    recomputed: int
    decoded: int
    peak_pages: int


def costs_of(steps: StepTime, efficiency: float) -> Costs:
    """The machine's form of step times."""
    return Costs(
        kernels=np.stack([steps.compute_ns, steps.memory_ns]) / efficiency,
        factors=np.array([steps.comm_ns / efficiency, steps.missed, steps.replicas]), windows=steps.windows,
    )  # fmt: skip


def serve(share: Share, costs: Costs, setting: Setting, *, page_tokens: int, block_tokens: int) -> ServerRun:
    """Run until all requests that start within the window are done.

    Raises UsageProblem where a step takes longer than ten minutes, or the requests longer than 31 days.
    """
    load, n = share.load, len(share.rows)
    window = UNLIMITED if setting.window_ns is None else setting.window_ns
    limits = np.array([
        setting.max_num_seqs, setting.max_num_batched_tokens, setting.kv_tokens // page_tokens, page_tokens,
        block_tokens, setting.host_ns, window,
    ])  # fmt: skip
    asked = np.stack([
        load.prompt, load.output, load.follows, load.wait_ns, load.refused, load.blocks_at[:-1], load.blocks_at[1:],
    ]).astype(np.int64)  # fmt: skip
    lives = np.zeros((machine.SHARED + 1, n), dtype=np.int64)
    lives[machine.ARRIVAL : machine.FINISH + 1] = -1
    blocks = np.stack([load.blocks, np.zeros_like(load.blocks)])
    cache = np.zeros((machine.BEHIND + 1, int(load.blocks.max(initial=-1)) + 1), dtype=np.int64)
    batch = np.zeros((2, min(setting.max_num_seqs, n) + 1), dtype=np.int64)
    queue, gaps = np.zeros((machine.DUE_ID + 1, n + 1), dtype=np.int64), np.zeros((2, n + 1), dtype=np.int64)
    state = np.zeros(machine.N_STATE, dtype=np.int64)
    state[machine.FREE] = limits[machine.PAGES]
    state[machine.LRU_HEAD] = state[machine.LRU_TAIL] = -1
    for i in np.flatnonzero(share.arrival_ns >= 0).tolist():
        machine.push(queue, state, int(share.arrival_ns[i]), i)
    seconds, by_batch = np.zeros(_FIRST_SECONDS, dtype=np.int64), np.zeros(batch.shape[1], dtype=np.int64)
    pages_ns = np.zeros(1)
    while True:
        outcome = machine.run(
            asked, lives, blocks, cache, batch, queue, *costs, limits, seconds, by_batch, pages_ns, gaps, state,
            _STEPS_AT_ONCE,
        )  # fmt: skip
        if outcome == machine.DONE:
            return _run(share, lives, seconds, by_batch, float(pages_ns[0]), gaps, state)
        if outcome == machine.TOO_SLOW:
            raise UsageProblem(
                "one step would take longer than ten minutes", hint="check --peak-flops, --bandwidth and --efficiency"
            )
        if outcome == machine.GROW:
            seconds = _grown(seconds, int(state[machine.CLOCK]))


def _grown(seconds: Ints, clock_ns: int) -> Ints:
    """With room for what is to come, twice as long at least."""
    if clock_ns > LONGEST_NS:
        raise UsageProblem(
            "the requests take more than 31 simulated days", hint="give a larger --pool, or a window with --minutes"
        )
    needed = (clock_ns + 2 * machine.LONGEST_STEP_NS) // NS_PER_S + 1
    longer = np.zeros(max(2 * len(seconds), needed), dtype=np.int64)
    longer[: len(seconds)] = seconds
    return longer


def _run(
    share: Share, lives: Ints, seconds: Ints, by_batch: Ints, pages_ns: float, gaps: Ints, state: Ints
) -> ServerRun:
    known = int(state[machine.CLOCK]) // NS_PER_S + 1
    return ServerRun(
        share=share, arrival_ns=lives[machine.ARRIVAL], scheduled_ns=lives[machine.SCHEDULED],
        first_ns=lives[machine.FIRST], finish_ns=lives[machine.FINISH], cached=lives[machine.CACHED],
        preempted=lives[machine.PREEMPTED], busy_ns=seconds[:known].astype(np.int32), batch_ns=by_batch,
        pages_ns=pages_ns, gaps=gaps[:, : state[machine.GAPS]].T, end_ns=int(state[machine.CLOCK]),
        steps=int(state[machine.STEPS]), device_ns=int(state[machine.BUSY_NS]), host_ns=int(state[machine.HOST_NS]),
        prefilled=int(state[machine.PREFILLED]), recomputed=int(state[machine.RECOMPUTED]),
        decoded=int(state[machine.DECODED]), peak_pages=int(state[machine.PEAK_PAGES]),
    )  # fmt: skip
