"""A cost: floating-point operations and bytes moved. Both may be numbers or arrays with one entry per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Quantity: TypeAlias = "float | NDArray[np.float64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`flops` counts a multiply-add as two; `bytes` is what must cross the memory bus at least once."""

    flops: Quantity
    bytes: Quantity

    def __add__(self, other: Cost) -> Cost:
        return Cost(flops=self.flops + other.flops, bytes=self.bytes + other.bytes)

    def times(self, count: float) -> Cost:
        """The cost of `count` such pieces of work."""
        return Cost(flops=self.flops * count, bytes=self.bytes * count)

    @property
    def intensity(self) -> Quantity:
        """Operations per byte; NaN where nothing is moved."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.true_divide(self.flops, self.bytes)
        return np.where(np.asarray(self.bytes) > 0, ratio, np.nan)


NOTHING = Cost(flops=0, bytes=0)


def present(rows: Quantity) -> Quantity:
    """1 where there are rows to compute, else 0: what is read once for all rows is not read for none."""
    return np.where(np.asarray(rows) > 0, 1.0, 0.0)
