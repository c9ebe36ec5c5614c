"""What one pass tells of one number: sums or values by independent unit, from which the number can be computed again.

A unit is what may be drawn with replacement: a session, a request, a block of consecutive steps. Units of two passes with
equal keys are drawn together (paired).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_BINS_PER_E = 100  # of a resampled quantile: bins 1 % wide


class Sample(Protocol):
    """One pass and one number. `n`: observations; `keys`: a key per unit, in the order of the weights."""

    @property
    def n(self) -> int: ...

    @property
    def keys(self) -> Sequence[Hashable]: ...

    def point(self) -> float:
        """The number; NaN where there is none."""
        ...

    def resampled(self, weights: Floats) -> Floats:
        """The number for each row of `weights` [draws, units]: how often a unit was drawn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Σ numerator / Σ denominator by stratum, averaged over strata with fixed weights.

    `numerator`, `denominator` [units, strata]; `weights` [strata] are the same on both sides, so that a change of the mix is
    no change of the number.
    """

    numerator: Floats
    denominator: Floats
    weights: Floats
    n: int
    keys: Sequence[Hashable]

    def point(self) -> float:
        """See the class."""
        whole = self.denominator.sum(axis=0)
        if not (whole > 0).all() or not self.weights.sum() > 0:
            return float("nan")
        return float((self.numerator.sum(axis=0) / whole) @ self.weights / self.weights.sum())

    def resampled(self, weights: Floats) -> Floats:
        """A stratum that no drawn unit has keeps its own mean."""
        drawn, per = weights @ self.numerator, weights @ self.denominator
        own = self.numerator.sum(axis=0) / np.maximum(self.denominator.sum(axis=0), 1e-300)
        rates = np.where(per > 0, drawn / np.where(per > 0, per, 1), own)
        values: Floats = rates @ self.weights / self.weights.sum()
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """The `q` quantile of `values`, by linear interpolation; `units` has the index of each value's unit.

    Resampled from a histogram whose bins are 1 % wide: fine enough for a spread, and no cost per value and draw.
    """

    values: Floats
    units: npt.NDArray[np.int64]
    q: float
    keys: Sequence[Hashable]

    @property
    def n(self) -> int:
        """Values."""
        return len(self.values)

    def point(self) -> float:
        """See the class."""
        return float(np.quantile(self.values, self.q)) if len(self.values) else float("nan")

    def resampled(self, weights: Floats) -> Floats:
        """Within a bin values count as evenly spread."""
        bins = np.floor(np.log(np.maximum(self.values, 1.0)) * _BINS_PER_E).astype(np.int64)
        known, place = np.unique(bins, return_inverse=True)
        counts = np.zeros((len(self.keys), len(known)))
        np.add.at(counts, (self.units, place), 1.0)
        reached = np.cumsum(weights @ counts, axis=1)
        target = self.q * np.maximum(reached[:, -1] - 1, 0) + 0.5
        at = np.minimum((reached < target[:, None]).sum(axis=1), len(known) - 1)
        rows = np.arange(len(reached))
        before = np.where(at > 0, reached[rows, np.maximum(at - 1, 0)], 0.0)
        share = (target - before) / np.maximum(reached[rows, at] - before, 1e-9)
        values: Floats = np.exp((known[at] + np.clip(share, 0, 1)) / _BINS_PER_E)
        return values
