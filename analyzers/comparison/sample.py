"""What one pass tells of one number: sums or values by independent unit, from which the number can be computed again.

A unit is what may be drawn with replacement: a session, a request, a block of consecutive steps. Units of two passes with
equal keys are drawn together (paired).
"""

from __future__ import annotations

import zlib
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

    def digest(self) -> int:
        """The same for the same values."""
        ...


class Nameless:
    """Key of a unit that is no pair of any of another pass: a block of steps or of time."""


def nameless(units: int) -> list[Nameless]:
    """A key for each of them."""
    return [Nameless() for _ in range(units)]


def seed(side: Sample) -> int:
    """Of the draws of a side: by its units, or their values where they have no name, so that draws are the same from run to
    run, those of pairs go together, and a swap of the sides changes nothing."""
    if any(isinstance(key, Nameless) for key in side.keys):
        return side.digest()
    return zlib.crc32("\n".join(map(repr, side.keys)).encode(errors="replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Σ numerator / Σ denominator; both have a value per unit."""

    numerator: Floats
    denominator: Floats
    n: int
    keys: Sequence[Hashable]

    def point(self) -> float:
        """See the class."""
        whole = float(self.denominator.sum())
        return float(self.numerator.sum()) / whole if whole > 0 else float("nan")

    def resampled(self, weights: Floats) -> Floats:
        """A draw of units without a denominator keeps the number of all."""
        per = weights @ self.denominator
        values: Floats = np.where(per > 0, (weights @ self.numerator) / np.where(per > 0, per, 1), self.point())
        return values

    def digest(self) -> int:
        """See the class."""
        return zlib.crc32(self.denominator.tobytes(), zlib.crc32(self.numerator.tobytes()))


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
        size = len(self.keys) * len(known)
        counts = np.bincount(self.units * len(known) + place, minlength=size).reshape(len(self.keys), len(known))
        reached = np.cumsum(weights @ counts, axis=1)
        target = self.q * np.maximum(reached[:, -1] - 1, 0) + 0.5
        at = np.minimum((reached < target[:, None]).sum(axis=1), len(known) - 1)
        rows = np.arange(len(reached))
        before = np.where(at > 0, reached[rows, np.maximum(at - 1, 0)], 0.0)
        share = (target - before) / np.maximum(reached[rows, at] - before, 1e-9)
        values: Floats = np.exp((known[at] + np.clip(share, 0, 1)) / _BINS_PER_E)
        return values

    def digest(self) -> int:
        """See the class."""
        return zlib.crc32(self.units.tobytes(), zlib.crc32(self.values.tobytes()))


def pooled(passes: Sequence[Sample]) -> Sample:
    """Several passes as one: what units of equal keys have is added up."""
    ratios = [item for item in passes if isinstance(item, Ratio)]
    if len(ratios) < len(passes) or not ratios:  # a quantile has no sums: the first pass stands for all
        return passes[0]
    places: dict[Hashable, int] = {}
    for item in ratios:
        for key in item.keys:
            places.setdefault(key, len(places))
    sums = np.zeros((2, len(places)))
    for item in ratios:
        at = [places[key] for key in item.keys]
        np.add.at(sums[0], at, item.numerator)
        np.add.at(sums[1], at, item.denominator)
    return Ratio(numerator=sums[0], denominator=sums[1], n=sum(item.n for item in ratios), keys=list(places))
