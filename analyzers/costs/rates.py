"""How fast a device really is, per category of kernel: fitted from steps, or taken from peaks.

A step's time in one category is modelled as a sum of terms that the cost model knows and rates that it does not:

    joint categories   t0 + B/β + F/π          or  t0 + max(B/β, F/π)      B, F of both phases' rows together
    attention          t0 + Σ over phases (r·requests + B/β + F/π)         each phase with rates of its own

A GEMM may read its weights again for every so many rows, so that B grows in steps, where that fits clearly better.
The rates are the θ ≥ 0 that explain the measured times with the least relative error; outliers lose their weight. Both
forms are fitted: a single compute thread does not overlap loads with arithmetic (the sum), a GPU does (the maximum).
A form is ruled out where it fits clearly worse, or where it needs a fixed cost per launch that no launch has: that is
weights being read, under another name. The forms left take part in the interval; so does, where every step was limited
by computing and no peak is known, the highest floor that reading the weights may still have. Peaks, where known, enter
as observations of β and π of limited weight, so that one step suffices with them, and many steps overrule them.

Rates are ns per unit of a feature. Features are zero for a phase that is absent, hence so is its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzers.costs.features import BLOCKS, BYTES, FLOPS, Features
from analyzers.costs.roof import NS_PER_S, Peaks

Floats = NDArray[np.float64]

PEAK_DOUBT = 0.35  # relative standard deviation given to a peak as a rate: kernels reach between half and all of it
PEAK_REACHED = 0.75  # the share of a peak that good kernels reach
MIN_SPREAD = 0.01  # nothing is measured better than this
FORMS_APART = 1.2  # a form whose errors are this much larger than the best one's is ruled out
LAUNCH_NS = 5_000  # what one launch may cost beyond its work, typically
REQUEST_NS = 500  # and one more request in it
CLEARLY = 0.85  # a block size must reduce the errors to this share to be believed
MAX_LAUNCH_NS = 30_000  # a launch, at the very most
FEW_STEPS, FEW_SPREAD = 8, 0.05  # with fewer steps their scatter says nothing; this is assumed
HUBER = 1.345
GROUPS_PER_OCTAVE, MOST_GROUPS = 2, 500  # sizes within a factor of √2 are one size
NO_SCALE = 1e-30  # of a feature that never occurs
ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fitted rates of one category, in one form."""

    overlap: bool  # max(B/β, F/π), else their sum
    theta: Floats  # ns per unit: joint terms, then own terms
    covariance: Floats
    spread: float  # typical relative error of one step
    misfit: float  # and of the model itself: what remains of it in the median of steps of one size
    block: int = 0  # index into BLOCKS: after how many rows weights are read again

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """Time in ns and its standard error (of the rates, not of one step's noise), per step."""
        design = _design(features, self.theta, self.block, overlap=self.overlap)
        time: Floats = design @ self.theta
        return time, _error(design, self.covariance)

    def contrast(self, part: Features, whole: Features, ratio: Floats) -> Floats:
        """Standard error of T(part) − ratio·T(whole), per step: errors common to both cancel."""
        designs = [_design(each, self.theta, self.block, overlap=self.overlap) for each in (part, whole)]
        return _error(designs[0] - ratio[:, None] * designs[1], self.covariance)


def _error(design: Floats, covariance: Floats) -> Floats:
    error: Floats = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", design, covariance, design), 0))
    return error


def fit(given: Features, measured_ns: Floats, peaks: Peaks | None = None, *, overlap: bool = False) -> list[Rates]:
    """Rates that explain `measured_ns`, the likeliest first; forms that are ruled out are left out.

    `overlap` is the form expected of the device: it leads unless the other fits clearly better. Empty where there is
    nothing to go by: no peaks, and fewer distinct steps than rates.
    """
    usable = measured_ns > 0
    data = Features(
        joint=given.joint[usable], own=given.own[usable], reread=given.reread[usable], launches=given.launches
    )  # fmt: skip
    times = measured_ns[usable]
    if len(times) == 0 or (peaks is None and len(np.unique(np.hstack([data.joint, data.own]), axis=0)) < 4):
        return []
    forms = (overlap, not overlap) if data.own.shape[1] == 0 else (False,)
    found = [_fit_blocks(data, times, peaks, overlap=form) for form in forms]
    plausible = [rates for rates in found if not rates.theta[0] > MAX_LAUNCH_NS * given.launches] or found
    least = min(rates.spread for rates in plausible)
    kept = [rates for rates in plausible if rates.spread <= FORMS_APART * least]
    if peaks is not None:
        return kept
    return kept + [floor for rates in kept if rates.overlap for floor in _highest_floor(rates, data)]


def _fit_blocks(data: Features, times: Floats, peaks: Peaks | None, *, overlap: bool) -> Rates:
    """The form with the block size that fits best; none unless one fits clearly better than none."""
    plain = _fit_form(data, times, peaks, 0, overlap=overlap)
    if len(times) < FEW_STEPS:
        return plain

    def misfit(rates: Rates) -> float:
        errors = np.abs(rates.predict(data)[0] / times - 1)
        return float(np.mean(np.minimum(errors, 3 * plain.spread)))

    blocks = [i for i in range(1, len(BLOCKS)) if np.any(data.reread[:, i] > 0)]
    tried = [_fit_form(data, times, peaks, i, overlap=overlap) for i in blocks]
    best = min(tried, key=misfit, default=plain)
    return best if misfit(best) < CLEARLY * misfit(plain) else plain


def _highest_floor(rates: Rates, data: Features) -> list[Rates]:
    """Where every step was limited by computing: the same rates with the slowest memory that this allows."""
    computing = data.joint[:, FLOPS] * rates.theta[FLOPS]
    moving = data.joint[:, BYTES] + data.reread[:, rates.block]
    if not np.any(moving > 0) or np.any(computing < moving * rates.theta[BYTES]):
        return []
    theta = rates.theta.copy()
    theta[BYTES] = np.min(computing[moving > 0] / moving[moving > 0])
    return [replace(rates, theta=theta)]


def _fit_form(given: Features, times: Floats, peaks: Peaks | None, block: int, *, overlap: bool) -> Rates:
    """Iteratively reweighted non-negative least squares on relative errors."""
    everything = _design(given, np.zeros(0), block, overlap=False)
    scale = np.maximum(everything.max(axis=0), NO_SCALE)
    theta = _start(scale, times)
    prior_mean, prior_weight = _prior(given, scale, peaks)
    weights = np.ones(len(times))
    design = everything
    spread = FEW_SPREAD if len(times) < FEW_STEPS else 1.0
    for _ in range(ROUNDS):
        design = _design(given, theta, block, overlap=overlap)
        scaled = design / scale / times[:, None] * weights[:, None]
        theta_scaled = _nonnegative(scaled.T @ scaled + np.diag(prior_weight * spread**2),
                                    scaled.T @ weights + prior_weight * spread**2 * prior_mean)  # fmt: skip
        theta = theta_scaled / scale
        errors = design @ theta / times - 1
        if len(times) >= FEW_STEPS:
            spread = max(float(np.median(np.abs(errors))) * 1.4826, MIN_SPREAD)
        weights = np.sqrt(np.minimum(1, HUBER * spread / np.maximum(np.abs(errors), 1e-12)))
    scaled = design / scale / times[:, None] * weights[:, None]
    information = scaled.T @ scaled / spread**2 + np.diag(prior_weight)
    # a rate pressed to zero is taken as known to be zero
    active = theta > 0
    covariance = np.zeros((len(theta), len(theta)))
    inner = np.linalg.pinv(information[np.ix_(active, active)])
    covariance[np.ix_(active, active)] = inner / np.outer(scale[active], scale[active])
    return Rates(
        overlap=overlap,
        theta=theta,
        covariance=covariance,
        spread=spread,
        misfit=_misfit(everything, errors, spread),
        block=block,
    )


def _misfit(design: Floats, errors: Floats, spread: float) -> float:
    """Typical median error of groups of steps of nearly one size; the spread itself where there are too few groups."""
    sizes = np.round(GROUPS_PER_OCTAVE * np.log2(1 + design)).astype(np.int64)
    _, group, count = np.unique(sizes, axis=0, return_inverse=True, return_counts=True)
    medians = [abs(float(np.median(errors[group.ravel() == i]))) for i in np.flatnonzero(count >= 3)[:MOST_GROUPS]]
    return spread if len(medians) < 3 else min(spread, 1.4826 * float(np.median(medians)))


def _start(scale: Floats, times: Floats) -> Floats:
    """Every term explains the typical step alone: only where to begin."""
    start: Floats = np.where(scale > NO_SCALE, np.median(times) / scale, 0)
    return start


def _prior(given: Features, scale: Floats, peaks: Peaks | None) -> tuple[Floats, Floats]:
    """Mean and weight (1/variance) of the scaled rates; no weight where nothing is known.

    Launches and requests cost little in themselves, so that of two terms which explain the same, the bytes are
    preferred to a fixed cost.
    """
    mean, weight = np.zeros(len(scale)), np.zeros(len(scale))
    attention = given.own.shape[1] > 0
    if given.launches > 0:
        weight[0] = (scale[0] * given.launches * LAUNCH_NS) ** -2
        if attention:
            weight[[3, 6]] = (scale[[3, 6]] * given.launches * REQUEST_NS) ** -2
    if peaks is None:
        return mean, weight
    per_byte, per_flop = (NS_PER_S / rate / PEAK_REACHED for rate in (peaks.bytes_per_s, peaks.flops_per_s))
    columns = [(4, per_byte), (5, per_flop), (7, per_byte)] if attention else [(BYTES, per_byte), (FLOPS, per_flop)]
    for column, rate in columns:
        if scale[column] > NO_SCALE:
            mean[column] = rate * scale[column]
            weight[column] = 1 / (PEAK_DOUBT * mean[column]) ** 2
    return mean, weight


def _design(given: Features, theta: Floats, block: int, *, overlap: bool) -> Floats:
    """The terms that count: with overlap, of bytes and FLOPs only the slower."""
    joint = given.joint.copy()
    joint[:, BYTES] += given.reread[:, block]
    if overlap:
        computing = joint[:, FLOPS] * theta[FLOPS] >= joint[:, BYTES] * theta[BYTES]
        joint[computing, BYTES] = 0
        joint[~computing, FLOPS] = 0
    return np.hstack([joint, given.own])


def _nonnegative(matrix: Floats, target: Floats) -> Floats:
    """argmin over x ≥ 0 of x'Ax/2 − b'x by the active-set method of Lawson and Hanson on the normal equations."""
    size = len(target)
    x = np.zeros(size)
    passive = np.zeros(size, dtype=bool)
    for _ in range(10 * size):
        gradient = target - matrix @ x
        gradient[passive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * max(1.0, float(np.abs(target).max())):
            break
        passive[best] = True
        while True:
            trial = np.zeros(size)
            trial[passive] = np.linalg.lstsq(matrix[np.ix_(passive, passive)], target[passive], rcond=None)[0]
            negative = passive & (trial <= 0)
            if not negative.any():
                x = trial
                break
            step = np.min(x[negative] / np.maximum(x[negative] - trial[negative], 1e-300))
            x = x + step * (trial - x)
            passive &= x > 1e-15
    return x
