"""Naive twins of the timeline SQL: one Python loop over ns or over a sorted list. Slow and short on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans that cover the same ns."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def measure(spans: Iterable[Span]) -> int:
    """ns covered."""
    return sum(end - start for start, end in union(spans))


def gaps(spans: Sequence[Span], window: Span) -> list[Span]:
    """What `spans` leave uncovered of `window`."""
    found, reached = [], window[0]
    for start, end in [*union(spans), (window[1], window[1])]:
        if min(start, window[1]) > reached:
            found.append((reached, min(start, window[1])))
        reached = max(reached, end)
    return found


def owners(activities: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    """ns of busy time by step of (start, end, step): where several run, the earliest step has the time."""
    cuts = sorted({at for start, end, _ in activities for at in (start, end)})
    owned: dict[int, int] = {}
    for left, right in pairwise(cuts):
        running = [step for start, end, step in activities if start <= left and end >= right]
        if running:
            owned[min(running)] = owned.get(min(running), 0) + right - left
    return owned


def segments(ops: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(start, end, id) of exclusive segments of (start, end, id): of all that run, the one which began last."""
    cuts = sorted({at for start, end, _ in ops for at in (start, end)})
    found = []
    for left, right in pairwise(cuts):
        running = [(start, -end, op) for start, end, op in ops if start <= left and end >= right]
        if running:
            found.append((left, right, max(running)[2]))
    return found
