"""The cost model as the findings ask it: how long a decode step of the run's model takes at its roof, and what a change does.

A measured step takes its roof's time and more. What a change does to that rest is not known: the interval of every gain
here reaches from a rest that stays as it is to one that changes in proportion (or, for a larger batch and for drafts, from
one that grows with the batch or the tokens to one that does not grow at all).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from analyzers.bounds import IMPOSSIBLE_ROOF_FRACTION
from analyzers.costs.configured import Configured
from analyzers.costs.parallel import Parallel
from analyzers.costs.shape import ModelShape, model_shape
from analyzers.costs.work import Rates
from analyzers.datasheet import called, flops_of, link_rate
from analyzers.finding_basis import Basis
from traces.errors import UsageProblem
from traces.rows import first_row

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The mean decode step: `step_ns` as measured, its requests and what each looks back on; `total_ns` of all steps.
    `latency_share` of the busy time went to kernels too small for any roof."""

    steps: int
    step_ns: float
    batch: int
    context: int
    latency_share: float
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The run's model on its device. `fp8_speedup`: of products in that type; None where the device is not known to have it."""

    shape: ModelShape  # of the whole model
    rates: Rates
    parallel: Parallel
    tied: bool
    fp8_speedup: float | None

    def decode_ns(self, batch: int, context: int) -> float:
        """Kernels one after another, each at its roof."""
        costs = Configured(self.shape, self.rates, tied=self.tied, parallel=self.parallel)
        return (costs.step(batch=batch, context=context).serial_s or 0.0) * NS_PER_S

    def with_fp8_weights(self) -> Priced:
        """Weights of a byte; those that are smaller already stay so."""
        small = replace(
            self.shape, linear_bytes=min(1.0, self.shape.linear_bytes), expert_bytes=min(1.0, self.shape.expert_bytes)
        )
        return replace(self, shape=small)

    def with_fp8_cache(self) -> Priced:
        """A cache of a byte per element."""
        return replace(self, shape=replace(self.shape, kv_bytes=min(1.0, self.shape.kv_bytes)))


def decode_of(run: Basis) -> Decode | None:
    """The mean decode step of the recording; None where there is none on the memory side, or its time is withheld."""
    if not run.trusts("steps.busy_ns", "steps.kind", "steps.decode_ns", "devices.busy_ns"):
        return None
    row = run.rows("finding_decode").row(0, named=True)
    if not row["steps"] or row["reqs"] is None or not row["context"]:
        return None
    return Decode(
        steps=row["steps"], step_ns=row["busy_ns"], batch=max(1, round(row["reqs"])), context=max(1, round(row["context"])),
        latency_share=row["latency_share"] or 0.0, total_ns=row["total_ns"],
    )  # fmt: skip


def priced(run: Basis) -> Priced | None:
    """None where the model, its division over ranks or the device's peaks are not known, or costs are withheld, or where
    experts were seen to be read otherwise than the model expects."""
    config = run.config.get("model_config")
    if not isinstance(config, dict) or not run.trusts("kernels.flops", "kernels.bytes", "steps.flops"):
        return None
    refused = "SELECT count(*) FROM health WHERE run_id = ? AND check_id IN ('model_shape', 'expert_routing') AND status <> 'ok'"
    row = first_row(run.con.execute(
        "SELECT name, peak_flops, peak_bandwidth FROM devices WHERE run_id = ? AND peak_flops > 0 AND peak_bandwidth > 0 "
        "AND peak_source IS NOT NULL ORDER BY rank, device", [run.run_id],
    ))  # fmt: skip
    parallel = _parallel(run)
    if row is None or parallel is None or first_row(run.con.execute(refused, [run.run_id])) != (0,):
        return None
    name, flops, bandwidth = row
    dtype = config.get("dtype") or config.get("torch_dtype")
    rates = Rates(weights=flops, other=flops, bandwidth=bandwidth, link=link_rate(name))
    try:
        shape = model_shape(config, dtype=dtype)
        Configured(shape, rates, tied=config.get("tie_word_embeddings") is True, parallel=parallel)
    except UsageProblem:
        return None
    return Priced(
        shape=shape, rates=rates, parallel=parallel, tied=config.get("tie_word_embeddings") is True,
        fp8_speedup=fp8_speedup(name, dtype if isinstance(dtype, str) else None),
    )  # fmt: skip


def is_possible(run_ns: float, roof_ns: float) -> bool:
    """Whether a step took no less than its roof: else the model is not the one that ran."""
    return 0 < roof_ns <= IMPOSSIBLE_ROOF_FRACTION * run_ns


def fp8_speedup(device_name: str | None, dtype: str | None) -> float | None:
    """How much faster the device multiplies in fp8 than in `dtype`, by its datasheet; None where either is not known."""
    found = called(device_name)
    if len(found) != 1:
        return None
    fast, plain = flops_of(found[0], "fp8"), flops_of(found[0], dtype)
    return fast / plain if fast and plain and fast > plain else None


def _parallel(run: Basis) -> Parallel | None:
    """Tensor parallelism as the engine says; None where ranks of a run that has several hold who knows what."""
    facts = run.facts
    if any((run.number(key) or 1) > 1 for key in ("pipeline_parallel_size", "data_parallel_size")):
        return None
    tensor = run.number("tensor_parallel_size")
    if tensor is None:
        alone = "SELECT count(*) FROM kernels WHERE run_id = ? AND category = 'comm'"
        return Parallel() if first_row(run.con.execute(alone, [run.run_id])) == (0,) else None
    return Parallel(tensor=tensor, expert=tensor if facts.get("enable_expert_parallel") is True else 1)
