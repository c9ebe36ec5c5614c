"""A device's energy as a function of time, from its counter or from its power readings, and what of the time it covers.

Between two samples energy grows linearly (a counter), or as the trapezoid of the two power readings has it. Stretches in
which the sensor was silent are not covered: their energy is not known, and counts nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

LONGEST_TIME_NS = 1 << 62  # differences of such times still fit 64 bits
MOST_W = 1e5  # more than any board draws: a reading above it is none
_GAP_PERIODS = 2.5  # so many median periods without a sample are a gap
_GAP_LEAST_NS, _GAP_MOST_NS = 2_000_000_000, 150_000_000_000
_COUNTER_SLOWEST_NS = 1_000_000_000  # it may move once a second, between two readings that are close together
_COUNTER_COVER = 0.9  # of what power covers; below that power is the better source


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyCurve:
    """Cumulative energy (J) and covered time (ns) at `at_ns` (ns after `origin_ns`); linear between, flat where silent.

    `source`: 'counter' | 'power' | 'power_instant'. `period_ns`: between changes of what it is made of, as seen here.
    """

    source: str
    origin_ns: int
    at_ns: Floats
    joules: Floats
    covered: Floats
    period_ns: int

    def energy_j(self, start_ns: Ints, end_ns: Ints) -> Floats:
        """Energy between each start and end, J."""
        return self._between(self.joules, start_ns, end_ns)

    def covered_ns(self, start_ns: Ints, end_ns: Ints) -> Floats:
        """Time between each start and end for which the energy is known, ns."""
        return self._between(self.covered, start_ns, end_ns)

    def span(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Energy (J) and covered time (ns) of one span."""
        start, end = np.array([start_ns], np.int64), np.array([end_ns], np.int64)
        return float(self.energy_j(start, end)[0]), float(self.covered_ns(start, end)[0])

    @property
    def total_j(self) -> float:
        """Energy of everything covered, J."""
        return float(self.joules[-1])

    @property
    def total_ns(self) -> int:
        """Time covered, ns."""
        return int(self.covered[-1])

    def _between(self, values: Floats, start_ns: Ints, end_ns: Ints) -> Floats:
        at = [
            np.interp((times - self.origin_ns).astype(np.float64), self.at_ns, values) for times in (start_ns, end_ns)
        ]
        result: Floats = np.maximum(at[1] - at[0], 0.0)
        return result


def gap_limit_ns(ts_ns: Ints) -> int:
    """How far apart two samples may be for the time between them to count; from the median period."""
    steps = np.diff(ts_ns)
    median = float(np.median(steps)) if len(steps) else 0.0
    return int(min(max(_GAP_PERIODS * median, _GAP_LEAST_NS), _GAP_MOST_NS))


def energy_curve(samples: pl.DataFrame) -> EnergyCurve | None:
    """The curve of one device; None where it has no power sensor.

    `samples`: ts_ns (ascending, distinct), energy_j, power_w, power_instant_w, each NULL where another source of the device
    was sampled. The counter is taken where it covers about
    as much as power does; of the power readings the momentary one where it covers as much as the averaged one.
    """
    counter = _counter_curve(samples)
    averaged = _power_curve(samples, "power_w", "power")
    instant = _power_curve(samples, "power_instant_w", "power_instant")
    power = max((instant, averaged), key=_covered)
    if counter is not None and _covered(counter) >= _COUNTER_COVER * _covered(power):
        return counter
    return power


def _covered(curve: EnergyCurve | None) -> int:
    return -1 if curve is None else curve.total_ns


def _read(samples: pl.DataFrame, column: str, most: float) -> tuple[Ints, Floats]:
    """Times and values of a column where it holds a possible reading."""
    value = pl.col(column)
    known = samples.filter(value.is_finite() & (value >= 0) & (value <= most))
    return known["ts_ns"].to_numpy(), known[column].to_numpy()


def _counter_curve(samples: pl.DataFrame) -> EnergyCurve | None:
    ts, value = _read(samples, "energy_j", np.inf)
    if len(ts) < 2:
        return None
    step_ns, gain = np.diff(ts), np.diff(value)
    good = (
        (step_ns <= gap_limit_ns(ts)) & (gain >= 0) & (gain <= MOST_W * np.maximum(step_ns, _COUNTER_SLOWEST_NS) / 1e9)
    )
    # a counter that shows the same value for several samples grew all the while: its readings between changes say nothing
    segment = np.concatenate([[0], np.cumsum(~good)])
    first = np.concatenate([[True], ~good])
    last = np.concatenate([~good, [True]])
    keep = first | last | np.concatenate([[True], gain > 0])
    if not np.any(good & (gain > 0)):
        return None  # stuck
    changes = np.diff(ts[keep])[np.diff(segment[keep]) == 0]
    step_j = np.where(np.diff(segment[keep]) == 0, np.diff(value[keep]), 0.0)
    return _curve("counter", ts[keep], step_j, np.diff(segment[keep]) == 0, int(np.median(changes)))


def _power_curve(samples: pl.DataFrame, column: str, source: str) -> EnergyCurve | None:
    ts, value = _read(samples, column, MOST_W)
    if len(ts) < 2:
        return None
    step_ns = np.diff(ts)
    good = step_ns <= gap_limit_ns(ts)
    if not np.any(good):
        return None
    step_j = np.where(good, (value[1:] + value[:-1]) / 2 * step_ns / 1e9, 0.0)
    return _curve(source, ts, step_j, good, int(np.median(step_ns[good])))


def _curve(source: str, ts: Ints, step_j: Floats, good: Flags, period_ns: int) -> EnergyCurve:
    origin = int(ts[0])
    covered = np.where(good, np.diff(ts), 0)
    return EnergyCurve(
        source=source, origin_ns=origin, at_ns=(ts - origin).astype(np.float64),
        joules=np.concatenate([[0.0], np.cumsum(step_j)]), covered=np.concatenate([[0.0], np.cumsum(covered)]),
        period_ns=period_ns,
    )  # fmt: skip


def as_dict(curve: EnergyCurve | None) -> dict[str, Any]:
    """What a reader has to know of a curve; None everywhere where there is none."""
    if curve is None:
        return {"energy_source": None, "energy_period_ns": None, "energy_covered_ns": None, "energy_j": None}
    return {
        "energy_source": curve.source, "energy_period_ns": curve.period_ns, "energy_covered_ns": curve.total_ns,
        "energy_j": curve.total_j,
    }  # fmt: skip
