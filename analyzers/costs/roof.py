"""The least time a cost can take, given what the device can do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.costs.cost import Cost, Quantity

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Rates of a device: π in operations per second for the dtype in use, β in bytes per second."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Operations per byte from which on computing is the limit."""
        return self.flops_per_s / self.bytes_per_s


def roof_time_ns(cost: Cost, peaks: Peaks) -> Quantity:
    """max(F/π, B/β) in ns."""
    return np.maximum(cost.flops / peaks.flops_per_s, cost.bytes / peaks.bytes_per_s) * NS_PER_S
