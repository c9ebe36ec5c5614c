"""Lengths in tokens: fixed, or drawn from a distribution.

`256` · `128..512` evenly · `exp:256` exponential with that mean · `lognormal:256:1.5` with that mean and coefficient of
variation. A drawn length is at least 1 and at most 100 times the mean.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from random import Random

MOST_TOKENS = 10_000_000
_MOST_TIMES = 100
_WANTED = "a length: write 256, 128..512, exp:256 or lognormal:256:1.5"
_FORM = re.compile(r"(\d{1,8})|(\d{1,8})\.\.(\d{1,8})|exp:(\d{1,8})|lognormal:(\d{1,8}):(\d{1,3}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of lengths. `low` and `high` are tokens, of 'uniform'; the others go by `mean`."""

    kind: str  # 'fixed' | 'uniform' | 'exp' | 'lognormal'
    mean: float
    low: int = 0
    high: int = 0
    cv: float = 0.0

    def draw(self, random: Random) -> int:
        """A length of at least 1 token."""
        if self.kind == "fixed":
            return int(self.mean)
        if self.kind == "uniform":
            return self.low + int(random.random() * (self.high - self.low + 1))
        value = -math.log(1.0 - random.random()) * self.mean if self.kind == "exp" else self._lognormal(random)
        return max(1, min(round(value), int(self.mean * _MOST_TIMES)))

    def _lognormal(self, random: Random) -> float:
        variance = math.log1p(self.cv * self.cv)
        return self.mean * math.exp(math.sqrt(variance) * normal(random) - variance / 2)


def parse_lengths(text: str) -> Lengths:
    """The distribution written as `text`. Raises ValueError with what is wanted."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(_WANTED)
    fixed, low, high, exponential, mean, cv = found.groups()
    if fixed:
        lengths = Lengths(kind="fixed", mean=int(fixed))
    elif low:
        lengths = Lengths(kind="uniform", mean=(int(low) + int(high)) / 2, low=int(low), high=int(high))
    elif exponential:
        lengths = Lengths(kind="exp", mean=int(exponential))
    else:
        lengths = Lengths(kind="lognormal", mean=int(mean), cv=float(cv))
    if not 1 <= lengths.mean <= MOST_TOKENS or (lengths.kind == "uniform" and not 1 <= lengths.low <= lengths.high):
        raise ValueError(f"a length from 1 to {MOST_TOKENS:,}")
    return lengths


def normal(random: Random) -> float:
    """A standard normal variate from two uniform ones: only Random.random() is the same in every version of Python."""
    return math.sqrt(-2.0 * math.log(1.0 - random.random())) * math.cos(2.0 * math.pi * random.random())
