"""Least time of any step of a model on a device, in a form that a loop over steps can evaluate quickly.

In the cost model, every kernel's FLOPs and bytes are sums over a few features of the step: tokens, context, query-key
pairs of each phase, sampled rows, whether there is anything at all, experts reached. The factors are taken from the
cost model itself, by evaluating it on steps of many sizes, and are checked against it: it stays the only source.

A step's roof time is Σ over kernels of max(F/π, B/β), as they run one after another, and the time of what ranks send.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.comm import stage_transfers
from analyzers.costs.configured import OTHERS, WITH_WEIGHTS
from analyzers.costs.model import pieces
from analyzers.costs.parallel import Parallel, of_one_rank
from analyzers.costs.roof import NS_PER_S
from analyzers.costs.shape import ModelShape
from analyzers.costs.work import Rates
from analyzers.simulation.arrays import Floats
from analyzers.simulation.machine import D_TOKENS, P_TOKENS
from traces.errors import UsageProblem

_PROBES, _SEED = 200, 7
_EXACT = 1e-9  # relative error that rounding explains


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Times at the device's peaks. One row per kernel: ns per unit of each feature."""

    compute_ns: Floats  # (kernels, features)
    memory_ns: Floats
    comm_ns: float  # per token of the step
    windows: NDArray[np.int64]  # sliding windows, tokens
    missed: float  # share of the experts that one token does not take; 1 where there are none
    replicas: float  # whose tokens meet at the experts

    def roof_ns(self, features: Floats) -> float:
        """Of a step with these features (see `features`)."""
        kernels = np.maximum(self.compute_ns @ features, self.memory_ns @ features).sum()
        return float(kernels) + self.comm_ns * float(features[P_TOKENS] + features[D_TOKENS])

    def features(self, prefill: PhaseLoad, decode: PhaseLoad) -> Floats:
        """Of steps with these loads: (features,), or (features, steps) where the loads hold arrays."""
        return np.array(
            np.broadcast_arrays(*_features(prefill, decode, self.windows, self.missed, self.replicas)), dtype=np.float64
        )


def step_time(model: ModelShape, rates: Rates, parallel: Parallel) -> StepTime:
    """Of one rank of `model`. Raises UsageProblem where the link's rate is needed and not known."""
    if parallel.pipeline > 1:
        raise UsageProblem("pipeline stages are not simulated", hint="leave out --pp; --tp divides a model")
    shape = of_one_rank(model, parallel)
    windows = np.array([window for window in shape.window_counts if window is not None], dtype=np.int64)
    moe = shape.moe
    missed, replicas = (1.0, 1.0) if moe is None else (1 - moe.top_k / moe.experts, float(moe.replicas))
    prefill, decode = _probes(windows)
    seen = np.array(np.broadcast_arrays(*_features(prefill, decode, windows, missed, replicas)), dtype=np.float64)
    compute, memory = [], []
    for category in WITH_WEIGHTS + OTHERS:
        rate = rates.weights if category in WITH_WEIGHTS else rates.other
        for piece in pieces(shape, category, prefill, decode):
            compute.append(_factors(seen, piece.flops) / rate * NS_PER_S)
            memory.append(_factors(seen, piece.bytes) / rates.bandwidth * NS_PER_S)
    return StepTime(
        compute_ns=np.array(compute), memory_ns=np.array(memory), comm_ns=_comm_ns(shape, rates, parallel),
        windows=windows, missed=missed, replicas=replicas,
    )  # fmt: skip


def _features(
    prefill: PhaseLoad, decode: PhaseLoad, windows: NDArray[np.int64], missed: float, replicas: float
) -> list[Floats]:
    tokens = np.asarray(prefill.tokens + decode.tokens, dtype=np.float64)
    sampled = np.asarray(prefill.sampled_rows + decode.sampled_rows, dtype=np.float64)
    found = [
        np.where(tokens > 0, 1.0, 0.0), sampled, np.where(sampled > 0, 1.0, 0.0), prefill.tokens, prefill.kv_tokens,
        prefill.pairs, decode.tokens, decode.kv_tokens, 1 - np.power(missed, tokens * replicas),
    ]  # fmt: skip
    for window in windows.tolist():
        found += [*prefill.windowed.get(window, (0.0, 0.0)), decode.windowed.get(window, (0.0, 0.0))[0]]
    return [np.asarray(each, dtype=np.float64) for each in found]


def _probes(windows: NDArray[np.int64]) -> tuple[PhaseLoad, PhaseLoad]:
    """Steps with independent sums: no set of requests need have them, the cost model only sums."""
    rng = np.random.default_rng(_SEED)
    mixed = rng.random(_PROBES)

    def draw(most: float, *, unless: bool | NDArray[np.bool_] = False) -> Floats:
        return np.where(unless, 0.0, np.ceil(rng.random(_PROBES) * most))

    alone, none = mixed < 0.3, mixed > 0.7
    p_tokens, p_kv, qq, qk = (draw(most, unless=none) for most in (64, 1e3, 1e3, 1e5))
    d_tokens, d_kv = draw(64, unless=alone), draw(1e4, unless=alone)
    prefill = PhaseLoad(
        reqs=np.minimum(p_tokens, 1), tokens=p_tokens, kv_tokens=p_kv, qq=qq, qk=qk,
        sampled_rows=np.where(mixed < 0.5, 0.0, np.minimum(p_tokens, 3)),
        windowed={window: (draw(1e3, unless=none), draw(1e4, unless=none)) for window in windows.tolist()},
    )  # fmt: skip
    seen = {window: draw(1e3, unless=alone) for window in windows.tolist()}
    decode = PhaseLoad(
        reqs=d_tokens, tokens=d_tokens, kv_tokens=d_kv, qq=d_tokens, qk=d_kv, sampled_rows=d_tokens,
        windowed={window: (tokens, tokens) for window, tokens in seen.items()},
    )  # fmt: skip
    return prefill, decode


def _factors(features: Floats, cost: float | Floats) -> Floats:
    """Per feature. Fails where the cost model has grown a term that is none of them."""
    values = np.broadcast_to(np.asarray(cost, dtype=np.float64), features.shape[1:])
    most = float(np.abs(values).max())
    if most == 0:
        return np.zeros(len(features))
    scale = np.maximum(np.abs(features).max(axis=1), 1e-300)
    found = np.linalg.lstsq((features / scale[:, None]).T, values / most, rcond=None)[0]
    error = float(np.abs(found @ (features / scale[:, None]) - values / most).max())
    if error > _EXACT:
        raise AssertionError(f"a kernel's cost is no sum over the features of a step (off by {error:.1e})")
    found[np.abs(found) < _EXACT] = 0.0  # rounding, not a cost
    return np.asarray(found / scale * most, dtype=np.float64)


def _comm_ns(shape: ModelShape, rates: Rates, parallel: Parallel) -> float:
    """Per token; latency of the collectives is not counted."""
    sent = sum(each.bus_bytes for each in stage_transfers(shape, parallel, 1.0))
    if not sent:
        return 0.0
    if rates.link is None:
        raise UsageProblem("the rate of the link between devices is not known", hint="give --link-bandwidth 50GB/s")
    return sent / rates.link * NS_PER_S
