"""How fast a device really is, per category of kernel: fitted from steps, or taken from peaks.

A step's time in one category is modelled as a sum of terms that the cost model knows and rates that it does not:

    joint categories   t0 + B/β + F/π          or  t0 + max(B/β, F/π)      B, F of both phases' rows together
    attention          t0 + Σ over phases (r·requests + B/β + F/π)         each phase with rates of its own

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

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.cost import Cost
from analyzers.costs.model import IDLE, MODELLED, pieces, step_cost
from analyzers.costs.roof import NS_PER_S, Peaks
from analyzers.costs.shape import ModelShape

Floats = NDArray[np.float64]

BYTES, FLOPS = 1, 2  # columns of the features that a roof compares
PEAK_DOUBT = 0.35  # relative standard deviation given to a peak as a rate: kernels reach between half and all of it
PEAK_REACHED = 0.75  # the share of a peak that good kernels reach
MIN_SPREAD = 0.01  # nothing is measured better than this
FORMS_APART = 1.2  # a form whose errors are this much larger than the best one's is ruled out
LAUNCH_NS = 5_000  # what one launch may cost beyond its work, typically
REQUEST_NS = 500  # and one more request in it
MAX_LAUNCH_NS = 30_000  # a launch, at the very most
FEW_STEPS, FEW_SPREAD = 8, 0.05  # with fewer steps their scatter says nothing; this is assumed
HUBER = 1.345
NO_SCALE = 1e-30  # of a feature that never occurs
ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a category's time depends on, per step: `joint` (n, 3) is presence, bytes, FLOPs of all rows together;
    `own` (n, k) are terms of each phase by itself. `launches` per step is NaN where the model does not say."""

    joint: Floats
    own: Floats
    launches: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fitted rates of one category, in one form."""

    overlap: bool  # max(B/β, F/π), else their sum
    theta: Floats  # ns per unit: joint terms, then own terms
    covariance: Floats
    spread: float  # typical relative error of one step

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """Time in ns and its standard error (of the rates, not of one step's noise), per step."""
        design = _design(features, self.theta, overlap=self.overlap)
        time: Floats = design @ self.theta
        return time, _error(design, self.covariance)

    def contrast(self, part: Features, whole: Features, ratio: Floats) -> Floats:
        """Standard error of T(part) − ratio·T(whole), per step: errors common to both cancel."""
        designs = [_design(each, self.theta, overlap=self.overlap) for each in (part, whole)]
        return _error(designs[0] - ratio[:, None] * designs[1], self.covariance)


def _error(design: Floats, covariance: Floats) -> Floats:
    error: Floats = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", design, covariance, design), 0))
    return error


def features(
    model: ModelShape,
    category: str,
    prefill: PhaseLoad = IDLE,
    decode: PhaseLoad = IDLE,
    *,
    with_logits: bool = False,
    launches: float | None = None,
) -> Features:
    """Features of `category` for arrays of loads. `with_logits`: GEMMs include the vocabulary product.

    `launches` is how many kernels of the category a step has; else it follows from the model where it can.

    A category without a cost model (copies, collectives) goes by rows.
    """
    rows = np.asarray(prefill.tokens + decode.tokens, dtype=np.float64)
    present = (rows > 0).astype(np.float64)
    if category == "attention":
        return Features(
            joint=np.column_stack([present, 0 * rows, 0 * rows]),
            own=_attention(model, prefill, decode),
            launches=model.layers if launches is None else launches,
        )
    known = float("nan") if launches is None else launches
    if category in MODELLED:
        cost = step_cost(model, category, prefill, decode)
        if launches is None and category in {"gemm", "moe"}:
            known = model.layers * len(pieces(model, category, prefill, decode))
        if with_logits and category == "gemm":
            cost = cost + step_cost(model, "logits", prefill, decode)
    else:
        cost = Cost(flops=rows, bytes=rows)
    joint = np.column_stack([present, np.broadcast_to(cost.bytes, rows.shape), np.broadcast_to(cost.flops, rows.shape)])
    return Features(joint=joint.astype(np.float64), own=np.zeros((len(rows), 0)), launches=known)


def _attention(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> Floats:
    columns = []
    for load, other in ((prefill, "decode"), (decode, "prefill")):
        cost = step_cost(model, "attention", **{other: IDLE, "decode" if other == "prefill" else "prefill": load})
        reqs = np.asarray(load.reqs, dtype=np.float64)
        columns += [reqs, np.broadcast_to(cost.bytes, reqs.shape), np.broadcast_to(cost.flops, reqs.shape)]
    return np.column_stack(columns).astype(np.float64)


def fit(given: Features, measured_ns: Floats, peaks: Peaks | None = None, *, overlap: bool = False) -> list[Rates]:
    """Rates that explain `measured_ns`, the likeliest first; forms that are ruled out are left out.

    `overlap` is the form expected of the device: it leads unless the other fits clearly better. Empty where there is
    nothing to go by: no peaks, and fewer distinct steps than rates.
    """
    usable = measured_ns > 0
    data = Features(joint=given.joint[usable], own=given.own[usable], launches=given.launches)
    times = measured_ns[usable]
    if len(times) == 0 or (peaks is None and len(np.unique(np.hstack([data.joint, data.own]), axis=0)) < 4):
        return []
    forms = (overlap, not overlap) if data.own.shape[1] == 0 else (False,)
    found = [_fit_form(data, times, peaks, overlap=form) for form in forms]
    plausible = [rates for rates in found if not rates.theta[0] > MAX_LAUNCH_NS * given.launches] or found
    least = min(rates.spread for rates in plausible)
    kept = [rates for rates in plausible if rates.spread <= FORMS_APART * least]
    if peaks is not None:
        return kept
    return kept + [floor for rates in kept if rates.overlap for floor in _highest_floor(rates, data)]


def _highest_floor(rates: Rates, data: Features) -> list[Rates]:
    """Where every step was limited by computing: the same rates with the slowest memory that this allows."""
    computing, moving = data.joint[:, FLOPS] * rates.theta[FLOPS], data.joint[:, BYTES]
    if not np.any(moving > 0) or np.any(computing < moving * rates.theta[BYTES]):
        return []
    theta = rates.theta.copy()
    theta[BYTES] = np.min(computing[moving > 0] / moving[moving > 0])
    return [replace(rates, theta=theta)]


def _fit_form(given: Features, times: Floats, peaks: Peaks | None, *, overlap: bool) -> Rates:
    """Iteratively reweighted non-negative least squares on relative errors."""
    scale = np.maximum(np.abs(np.hstack([given.joint, given.own])).max(axis=0), NO_SCALE)
    theta = _start(scale, times)
    prior_mean, prior_weight = _prior(given, scale, peaks)
    weights = np.ones(len(times))
    design = np.hstack([given.joint, given.own])
    spread = FEW_SPREAD if len(times) < FEW_STEPS else 1.0
    for _ in range(ROUNDS):
        design = _design(given, theta, overlap=overlap)
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
    return Rates(overlap=overlap, theta=theta, covariance=covariance, spread=spread)


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


def _design(given: Features, theta: Floats, *, overlap: bool) -> Floats:
    """The terms that count: with overlap, of bytes and FLOPs only the slower."""
    if not overlap:
        return np.hstack([given.joint, given.own])
    joint = given.joint.copy()
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
