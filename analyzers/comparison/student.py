"""Student's t: two-sided tail and its inverse, without a numerics library.

The tail is the regularised incomplete beta function I_x(ν/2, 1/2) at x = ν/(ν + t²), by its continued fraction (Abramowitz
and Stegun 26.5.8, evaluated by Lentz's method).
"""

from __future__ import annotations

import math

_TINY = 1e-300
_TERMS = 400


def two_sided(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) with `freedom` (> 0) degrees of freedom."""
    if not math.isfinite(t):
        return 0.0
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(level: float, freedom: float) -> float:
    """The t that |T| exceeds with probability `level` (0 < level < 1)."""
    high = 1.0
    while two_sided(high, freedom) > level:
        high *= 2
        if high > 1e150:
            return math.inf
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if two_sided(middle, freedom) > level:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d)
            c = _away(1 + numerator / c)
            step = c * d
            value *= step
        if abs(step - 1) < 1e-15:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
