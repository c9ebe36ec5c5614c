"""Idle time of a simulated server: by cause, and as a sampler at 1 Hz would see it (arXiv 2604.04745, our method §8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.simulation.arrays import Floats, Ints
from analyzers.simulation.server import ServerRun
from traces.clock import NS_PER_S

MIN_DURATIONS_S = (1, 5)  # every idle second (the paper's serving table), runs of 5 s (its cluster figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Whole seconds of one server. Idle seconds and the lengths of their runs per minimum duration."""

    count: int
    idle: dict[int, int]
    runs: dict[int, Ints]  # lengths in s
    busy_s: Floats  # Σ busy share, of all and of the idle seconds per minimum duration
    power: tuple[float, float] | None  # W idle and busy


def idle_by_cause(run: ServerRun, window_ns: int) -> dict[str, int]:
    """ns within the window: `host` between steps, `tool_wait` while every open session waits for a tool, `no_work`.

    With the busy time they sum to the window.
    """
    gaps = np.concatenate([run.gaps, [[run.end_ns, window_ns]]]).clip(0, window_ns)
    gaps = gaps[gaps[:, 1] > gaps[:, 0]]
    empty = int((gaps[:, 1] - gaps[:, 0]).sum())
    waits = _tool_waits(run, gaps, window_ns)
    return {"host": run.host_ns, "tool_wait": waits, "no_work": empty - waits}


def _tool_waits(run: ServerRun, gaps: Ints, window_ns: int) -> int:
    """Time within the gaps in which sessions are open and all of them wait for a tool."""
    share = run.share
    started = np.flatnonzero((share.session >= 0) & (run.arrival_ns >= 0))
    if not len(started) or not len(gaps):
        return 0
    done = np.where(run.finish_ns < 0, run.arrival_ns, run.finish_ns)  # a refused turn is done at once
    order = started[np.lexsort([started, run.arrival_ns[started], share.session[started]])]
    session, arrival, finish = share.session[order], run.arrival_ns[order], done[order]
    same = session[1:] == session[:-1]
    begins, ends = np.concatenate([[True], ~same]), np.concatenate([~same, [True]])
    following = np.where(ends, window_ns, np.concatenate([arrival[1:], [0]]))
    closed = np.logical_or.reduceat(share.last[order], np.flatnonzero(begins))
    last_done = np.maximum.reduceat(finish, np.flatnonzero(begins))
    open_end = np.where(closed, last_done, window_ns)
    waiting = ~(ends & share.last[order])
    tool_end = np.minimum(finish + share.tool_ns[order], following)
    spans = (
        (gaps[:, 0], gaps[:, 1], 0), (arrival[begins], open_end, 1),
        (finish[waiting], np.maximum(tool_end, finish)[waiting], 2),
    )  # fmt: skip
    times = np.concatenate([part for start, end, _ in spans for part in (start, end)])
    deltas = np.zeros((len(times), 3), dtype=np.int64)
    at = 0
    for start, end, kind in spans:
        deltas[at : at + len(start), kind] = 1
        deltas[at + len(start) : at + len(start) + len(end), kind] = -1
        at += len(start) + len(end)
    by_time = np.argsort(times, kind="stable")
    level = np.cumsum(deltas[by_time], axis=0)[:-1]
    lasts = np.diff(times[by_time])
    return int(lasts[(level[:, 0] > 0) & (level[:, 2] > 0) & (level[:, 2] == level[:, 1])].sum())


def sampled(run: ServerRun, window_ns: int, power: tuple[float, float] | None, active_percent: float = 5) -> Seconds:
    """At 1 Hz from the first arrival; a last part of a second is left out. `power`: W idle and busy of the server."""
    count = window_ns // NS_PER_S
    busy = np.zeros(count, dtype=np.int64)
    known = min(count, len(run.busy_ns))
    busy[:known] = run.busy_ns[:known]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (busy * 100 < active_percent * NS_PER_S).view(np.int8), [0]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    before = np.concatenate([[0], np.cumsum(busy)])
    runs, idle, busy_s = {}, {}, [float(before[-1]) / NS_PER_S]
    for least in MIN_DURATIONS_S:
        kept = lengths >= least
        runs[least], idle[least] = lengths[kept], int(lengths[kept].sum())
        within = before[starts[kept] + lengths[kept]] - before[starts[kept]]
        busy_s.append(float(within.sum()) / NS_PER_S)
    return Seconds(count=count, idle=idle, runs=runs, busy_s=np.array(busy_s), power=power)


def energy_share(seconds: list[Seconds], least: int) -> float | None:
    """Of the energy of all servers, that of their idle seconds; each second draws idle + busy share × (busy − idle)."""
    place, total, idle = 1 + MIN_DURATIONS_S.index(least), 0.0, 0.0
    for each in seconds:
        if each.power is None:
            return None
        rest, busy = each.power
        total += rest * each.count + (busy - rest) * float(each.busy_s[0])
        idle += rest * each.idle[least] + (busy - rest) * float(each.busy_s[place])
    return idle / total if total else None
