"""Lanes of a track: slices of one lane never overlap, which is what trace viewers require of a thread."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

_Column = npt.NDArray[np.int64]
LEFT_OUT = -1  # lane of a slice that begins before one that was placed already


class Lanes:
    """Places the slices of one track, which come in order of their start, in the lowest lane that is free.

    Nearly all activities of a stream follow each other and are placed at once; only those that overlap go one by one.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []  # (end, lane), a heap
        self._free: list[int] = []  # a heap
        self._reached = int(np.iinfo(np.int64).min)  # latest end so far
        self._last = self._reached  # latest start so far

    def place(self, start: _Column, end: _Column) -> _Column:
        """A lane from 0 per slice (ns); LEFT_OUT where it begins before the slice before it, or ends before it begins."""
        lanes = np.full(len(start), LEFT_OUT, dtype=np.int64)
        usable = np.flatnonzero((end >= start) & (end - start >= 0))  # times far apart wrap around
        begin = start[usable]
        in_order = begin >= np.maximum.accumulate(np.concatenate(([self._last], begin)))[:-1]
        kept = usable[in_order]
        if len(kept):
            lanes[kept] = self._place(start[kept], end[kept])
            self._last = int(start[kept[-1]])
        return lanes

    def _place(self, start: _Column, end: _Column) -> _Column:
        lanes = np.zeros(len(start), dtype=np.int64)
        reached = np.maximum.accumulate(np.concatenate(([self._reached], end)))
        alone = start >= reached[:-1]  # every lane is free here
        firsts = np.flatnonzero(alone)
        if not alone[0]:
            firsts = np.concatenate(([0], firsts))
        stops = np.append(firsts[1:], len(start))
        crowded = (stops - firsts > 1) | ~alone[firsts]
        for first, stop in zip(firsts[crowded].tolist(), stops[crowded].tolist(), strict=True):
            if alone[first]:
                self._clear()
            lanes[first:stop] = [
                self._next(*ends) for ends in zip(start[first:stop].tolist(), end[first:stop].tolist(), strict=True)
            ]
        if not crowded[-1]:
            self._clear()
            self._busy.append((int(end[-1]), 0))
        self._reached = int(reached[-1])
        return lanes

    def _clear(self) -> None:
        self._busy.clear()
        self._free.clear()

    def _next(self, start: int, end: int) -> int:
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        lane = heapq.heappop(self._free) if self._free else len(self._busy)
        heapq.heappush(self._busy, (end, lane))
        return lane
