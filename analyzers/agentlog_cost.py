"""Least time of a device for a part of a prompt: tokens [a, b) attend to all before them, so late ones are dearer.

Arithmetic is a difference of whole prompts': C(b) - C(a). Traffic is that of a prompt of b - a tokens, and reading the
keys and values of the a tokens before. Neither knows queues, launches or what runs beside it: a floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_STEP = 1.05  # of the grid; arithmetic is quadratic between its points, so the error stays below 1e-3
_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFloor:
    """Of one prompt from an empty cache."""

    compute_s: float
    memory_s: float
    kv_read_s: float  # reading the keys and values of the whole prompt once


class PromptCost:
    """Floors of parts of prompts; `floor_of(tokens)` is asked at the points of a grid, which grows as needed."""

    def __init__(self, floor_of: Callable[[int], PromptFloor]) -> None:
        self._floor_of = floor_of
        self._points: list[int] = [0]
        self._floors: list[PromptFloor] = [PromptFloor(compute_s=0.0, memory_s=0.0, kv_read_s=0.0)]

    def piece_ns(self, pieces: Ints) -> Seconds:
        """ns of each piece (columns, in the order of the prompt, the cached one first) of each request (rows).

        A request's time is the larger of arithmetic and traffic, divided over its pieces by their arithmetic.
        """
        ends = np.cumsum(pieces, axis=1)
        self._reach(int(ends[:, -1].max(initial=1)))
        points = np.asarray(self._points, dtype=np.float64)
        compute = np.array([item.compute_s for item in self._floors])
        at = np.interp(ends, points, compute)
        spent = np.diff(at, axis=1)
        spent[pieces[:, 1:] == 0] = 0.0
        whole = spent.sum(axis=1)
        computed = (ends[:, -1] - ends[:, 0]).astype(np.float64)
        memory = np.interp(computed, points, np.array([item.memory_s for item in self._floors]))
        kv = np.interp(ends[:, 0], points, np.array([item.kv_read_s for item in self._floors]))
        floor = np.maximum(whole, np.where(computed > 0, memory + kv, 0.0))
        scale = np.divide(floor, whole, out=np.zeros_like(floor), where=whole > 0)
        found: Seconds = np.zeros(pieces.shape, dtype=np.float64)
        found[:, 1:] = spent * scale[:, None] * _NS
        return found

    def _reach(self, tokens: int) -> None:
        while self._points[-1] < tokens:
            point = max(self._points[-1] + 1, int(self._points[-1] * _STEP))
            self._points.append(point)
            self._floors.append(self._floor_of(point))
