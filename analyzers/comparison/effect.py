"""How far two sides are apart, how sure that is, and which differences may be called one.

A side is one pass or several. Three sources of noise:
- within a pass: sessions, requests or blocks of steps are drawn again with replacement (bootstrap), together on both sides
  where the keys of the units are the same;
- between passes taken in turns (A, B, A, B, …): their own spread (of counts, that of their units where it is larger), with what
  was measured elsewhere counted as PRIOR_FREEDOM passes more, so that two passes that agree by chance prove nothing (a moderated
  t-test: Smyth 2004);
- a drift of the machine between the sides, where they were not taken in turns: nothing in the recordings can tell it from an
  effect, so the interval is wider by a fixed allowance.

Many numbers are looked at, so intervals are at the level of Benjamini and Yekutieli (2005): where R of m intervals leave zero
out, each has 1 - R·α/m. Exactly those are the discoveries of Benjamini and Hochberg (1995): of the verdicts given, α at most
are expected to be false, and where nothing differs the chance of any verdict is α.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.comparison import student
from analyzers.comparison.sample import Floats, Sample, pooled, seed

LEAST_UNITS = 6  # with fewer a spread within a pass is not worth its name
DRAWS = 400
PRIOR_FREEDOM = 4  # how many passes' worth the spread of passes that was measured elsewhere counts
_MOST_STRETCHED = math.log(1000)  # of a pass that tells nothing any factor is too much
LONG_NS = 10_000_000_000  # a shorter pass averages over less of what else the machine does


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What passes of LONG_NS do on a kind of machine: `spread` is the standard deviation of the logarithm of one of several in
    turns, `drift` what two equal ones may differ by, share."""

    spread: float
    drift: float


# Of a shared machine with processor time to spare, repeats are known to drift by 10 to 30 %. CROWDED: measured on 2 cores with
# five times the work they can do (benchmarks/compare_aa.py, docs/compare.md).
SHARED = Machine(spread=0.08, drift=0.30)
CROWDED = Machine(spread=0.25, drift=1.00)


def stretched(log_share: float, shortest_ns: float | None) -> float:
    """`log_share` of a pass of LONG_NS for passes as short as this: disturbances of their own average as the root of time."""
    if shortest_ns is None or shortest_ns >= LONG_NS:
        return log_share
    return min(log_share * math.sqrt(LONG_NS / max(shortest_ns, 1)), _MOST_STRETCHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a number is compared: by its logarithm, or (shares) by its difference."""

    log: bool

    def of(self, value: float) -> float:
        """NaN where it cannot be compared."""
        if self.log:
            return math.log(value) if value > 0 and math.isfinite(value) else math.nan
        return value

    def array(self, values: Floats) -> Floats:
        """Of many."""
        return np.log(np.maximum(values, 1e-300)) if self.log else values


LOG, DIFFERENCE = Scale(log=True), Scale(log=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """`estimate` = candidate - base on the scale, its standard error and degrees of freedom, and the allowance for drift.

    `base` and `cand` are the numbers themselves (mean of the passes; geometric on the log scale). `method` says what the
    standard error comes from: 'passes in turns', 'passes', 'sessions paired', …
    """

    base: float
    cand: float
    estimate: float
    error: float
    freedom: float
    allowance: float
    method: str

    def p_value(self) -> float:
        """Two-sided, of a difference beyond the allowance."""
        beyond = abs(self.estimate) - self.allowance
        if beyond <= 0:
            return 1.0
        return 0.0 if self.error <= 0 else student.two_sided(beyond / self.error, self.freedom)

    def interval(self, level: float) -> tuple[float, float]:
        """On the scale; at 1 - level."""
        half = self.allowance + (student.quantile(level, self.freedom) * self.error if self.error > 0 else 0.0)
        return self.estimate - half, self.estimate + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is known of a number beside its samples, on its scale; zeros for what a clock has no part in.

    `common`: variance of the difference of two single passes that all units of a pass have in common (requests served side by
    side slow down together, so that drawing them again does not show it).
    """

    pass_spread: float
    drift: float
    common: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How the passes of the sides lie in time: `rounds` are (place in base, place in cand) taken one after the other."""

    rounds: tuple[tuple[int, int], ...]


def design(base_starts: Sequence[int | None], cand_starts: Sequence[int | None]) -> Design:
    """Rounds, where the passes in order of time are pairs of one of each side (A B A B or A B B A …), two at the least."""
    if len(base_starts) != len(cand_starts) or len(base_starts) < 2 or None in (*base_starts, *cand_starts):
        return Design(rounds=())
    order = sorted(
        [(start, 0, place) for place, start in enumerate(base_starts) if start is not None]
        + [(start, 1, place) for place, start in enumerate(cand_starts) if start is not None]
    )
    rounds = []
    for first, second in zip(order[::2], order[1::2], strict=True):
        if first[1] == second[1]:
            return Design(rounds=())
        low, high = sorted((first, second), key=lambda item: item[1])
        rounds.append((low[2], high[2]))
    return Design(rounds=tuple(rounds))


def effect(base: Sequence[Sample], cand: Sequence[Sample], scale: Scale, noise: Noise, plan: Design) -> Effect | None:
    """None where a side has no number, or neither passes nor units to tell the noise from."""
    values = [[scale.of(item.point()) for item in side] for side in (base, cand)]
    if not all(side and all(math.isfinite(value) for value in side) for side in values):
        return None
    if len(base) + len(cand) == 2:
        return _of_units(base[0], cand[0], scale, noise)
    found = _of_passes(values[0], values[1], scale, noise, plan)
    return found if noise.pass_spread else _of_counts(found, base, cand, scale)


def _of_counts(passes: Effect, base: Sequence[Sample], cand: Sequence[Sample], scale: Scale) -> Effect | None:
    """Counts repeat exactly, and may differ twice by the same block of one session: their units have to agree too."""
    units = _of_units(pooled(base), pooled(cand), scale, Noise(pass_spread=0.0, drift=0.0))
    if units is None:
        return None
    wider = units if units.error >= passes.error else passes
    return replace(passes, error=wider.error, freedom=wider.freedom)  # an error is as sure as what it was told from


def _of_passes(base: list[float], cand: list[float], scale: Scale, noise: Noise, plan: Design) -> Effect:
    if plan.rounds and len(plan.rounds) == len(base):
        differences = [cand[c] - base[b] for b, c in plan.rounds]
        freedom = len(differences) - 1
        own = float(np.var(differences, ddof=1))
        prior, per, allowance, method = 2 * noise.pass_spread**2, 1 / len(differences), 0.0, "passes in turns"
    else:
        freedom = len(base) + len(cand) - 2
        own = sum(float(np.var(side)) * len(side) for side in (base, cand)) / freedom
        prior, per = noise.pass_spread**2, 1 / len(base) + 1 / len(cand)
        allowance, method = noise.drift, "passes"
    if noise.pass_spread:
        own = (freedom * own + PRIOR_FREEDOM * prior) / (freedom + PRIOR_FREEDOM)
        freedom += PRIOR_FREEDOM
    middle = [sum(side) / len(side) for side in (base, cand)]
    shown = [math.exp(value) if scale.log else value for value in middle]
    return Effect(
        base=shown[0], cand=shown[1], estimate=middle[1] - middle[0], error=math.sqrt(own * per), freedom=freedom,
        allowance=allowance, method=method,
    )  # fmt: skip


def _of_units(base: Sample, cand: Sample, scale: Scale, noise: Noise) -> Effect | None:
    units = min(len(base.keys), len(cand.keys))
    if units < LEAST_UNITS:
        return None
    paired = list(base.keys) == list(cand.keys)
    seeds = seed(base), seed(cand)
    first = scale.array(base.resampled(_weights(len(base.keys), seeds[0])))
    # equal values that are no pairs are drawn apart all the same
    second = scale.array(cand.resampled(_weights(len(cand.keys), seeds[1] + (seeds[0] == seeds[1] and not paired))))
    spread = float(np.std(second - first, ddof=1))
    if spread < 1e-12:  # the same in every draw: sums of doubles differ in their last digits
        spread = 0.0
    low, high = base.point(), cand.point()
    return Effect(
        base=low, cand=high, estimate=scale.of(high) - scale.of(low),
        error=math.sqrt(spread**2 * units / (units - 1) + noise.common), freedom=units - 1, allowance=noise.drift,
        method="paired" if paired else "unpaired",
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _weights(units: int, start: int) -> Floats:
    """How often each unit is drawn, in DRAWS draws. The same for all numbers, and from run to run."""
    random = np.random.default_rng(start)
    drawn: Floats = random.multinomial(units, np.full(units, 1 / units), size=DRAWS).astype(np.float64)
    return drawn


def discoveries(p_values: Sequence[float], alpha: float) -> float:
    """The level α·R/m of intervals, with R of Benjamini and Hochberg; α/m where nothing is found, α for no values."""
    ranked = sorted(p_values)
    found = max((place for place, p in enumerate(ranked, start=1) if p <= place * alpha / len(ranked)), default=0)
    return alpha * max(found, 1) / max(len(ranked), 1)
