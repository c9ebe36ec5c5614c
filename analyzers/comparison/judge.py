"""From the samples of a number to a verdict with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analyzers.comparison.effect import (
    LEAST_UNITS,
    SHARED,
    Effect,
    Machine,
    Noise,
    design,
    discoveries,
    effect,
    stretched,
)
from analyzers.comparison.metric import HEADLINE, HIGHER, Metric

BETTER, WORSE, SAME, CHANGED, UNJUDGED = "better", "worse", "no difference", "changed", "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of a comparison; unknown is None.

    `base`, `cand`: the number in `unit`. `change`, `low`, `high`: relative change with its interval, 0.1 = 10 % more; of shares
    the difference in shares. `sampling`: half width of the interval that is due to the samples, `drift`: what is allowed for a
    drift of the machine, both as a factor - 1 (of shares: as a share). `verdict`: 'better', 'worse', 'no difference', 'changed' (where
    neither direction is better), 'not judged' (`reason` says why). `method`: what the noise was told from.
    """

    metric_id: str
    group: str
    title: str
    unit: str
    better: str | None
    verdict: str
    base: float | None = None
    cand: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    sampling: float | None = None
    drift: float | None = None
    p_value: float | None = None
    n_base: int | None = None
    n_cand: int | None = None
    passes_base: int | None = None
    passes_cand: int | None = None
    method: str | None = None
    note: str = ""
    reason: str | None = None
    gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a judgement rests on. `alpha`: share of false verdicts of a family of numbers. `drift`, `gate`: see compare.Question."""

    alpha: float
    machine: Machine = SHARED
    drift: float | None = None
    gate: float | None = None

    def allowed(self, shortest_ns: int | None) -> tuple[float, float]:
        """Logarithms of the drift allowed for, and of the spread of a pass: what the user measured, else by the passes' length."""
        if self.drift is not None:
            return math.log1p(self.drift), min(self.machine.spread, math.log1p(self.drift))
        return stretched(math.log1p(self.machine.drift), shortest_ns), stretched(self.machine.spread, shortest_ns)


def judge(metrics: Sequence[Metric], terms: Terms) -> list[Row]:
    """A family of numbers, their intervals at the level that all of them together need."""
    known = [(metric, _effect(metric, terms)) for metric in metrics]
    level = discoveries([found.p_value() for _, found in known if found is not None], terms.alpha)
    return [_row(metric, found, level, terms.gate) for metric, found in known]


def _effect(metric: Metric, terms: Terms) -> Effect | None:
    if metric.withheld or not metric.base or not metric.cand:
        return None
    noise = Noise(pass_spread=0.0, drift=0.0)
    if metric.timed:
        drift, spread = terms.allowed(metric.shortest_ns)
        if metric.scale.log:
            noise = Noise(pass_spread=spread, drift=drift, common=metric.common)
        else:  # of a share, a drift of the machine moves a part that large
            largest = max(abs(item.point()) for item in (*metric.base, *metric.cand))
            noise = Noise(pass_spread=spread * largest, drift=math.expm1(drift) * largest)
    return effect(metric.base, metric.cand, metric.scale, noise, design(*metric.starts))


def _row(metric: Metric, found: Effect | None, level: float, gate: float | None) -> Row:
    row = Row(
        metric_id=metric.metric_id, group=metric.group, title=metric.title, unit=metric.unit, better=metric.better, note=metric.note,
        verdict=UNJUDGED,
    )  # fmt: skip
    if found is None:
        base, cand = _points(metric)
        return replace(row, reason=metric.withheld or _unjudged(metric), base=base, cand=cand)
    low, high = found.interval(level)
    shown = _share if metric.scale.log else _points_apart
    ends = (shown(found.estimate), shown(low), shown(high))
    verdict = _verdict(metric.better, low, high)
    worsening = -ends[2] if metric.better == HIGHER else ends[1]  # the least that the interval allows
    return replace(
        row, verdict=verdict, base=found.base, cand=found.cand, change=ends[0], low=ends[1], high=ends[2],
        sampling=shown((high - low) / 2 - found.allowance), drift=shown(found.allowance), p_value=found.p_value(),
        n_base=sum(item.n for item in metric.base), n_cand=sum(item.n for item in metric.cand),
        passes_base=len(metric.base), passes_cand=len(metric.cand),
        method=found.method if found.method.startswith("passes") else f"{metric.units}, {found.method}",
        gated=gate is not None and verdict == WORSE and metric.group in HEADLINE and worsening > gate,
    )  # fmt: skip


def _share(logarithm: float) -> float:
    """Of a logarithm, the factor - 1; where that is past any number worth telling, a large one."""
    return math.expm1(min(logarithm, 200.0))


def _points_apart(difference: float) -> float:
    """Of two shares; further apart than the whole they cannot be, whatever the noise."""
    return min(max(difference, -1.0), 1.0)


def _verdict(better: str | None, low: float, high: float) -> str:
    if low <= 0 <= high:
        return SAME
    if better is None:
        return CHANGED
    return WORSE if (low > 0) != (better == HIGHER) else BETTER


def _points(metric: Metric) -> tuple[float | None, float | None]:
    """Numbers that cannot be judged are still told, where there is one pass to tell them of."""
    if metric.withheld or len(metric.base) != 1 or len(metric.cand) != 1:
        return None, None
    base, cand = (value if math.isfinite(value) else None for value in (metric.base[0].point(), metric.cand[0].point()))
    return base, cand


def _unjudged(metric: Metric) -> str:
    least = min((len(item.keys) for item in (*metric.base, *metric.cand)), default=0)
    if least < LEAST_UNITS:
        return f"{metric.units or 'units'}: {least}, and {LEAST_UNITS} are needed to tell a spread, or several passes"
    return "0 or not known on a side"
