"""Attention calls: their geometry is in the operands or the model, what they attend to is in the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.costing.operators import Heads
from analyzers.costing.sequence import STEP
from analyzers.costs.attention import PhaseLoad, attention
from analyzers.costs.cost import Cost
from analyzers.costs.model import step_cost
from analyzers.costs.shape import ModelShape

Floats = NDArray[np.float64]
_LOADS = ("tokens", "kv", "qq", "qk", "reqs", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoads:
    """Steps as one array entry each: `steps` has step_id and prefill_*/decode_*; `windows` what a window lets them see.

    An unknown number is NaN, and so is every cost that depends on it.
    """

    steps: pl.DataFrame
    windows: pl.DataFrame

    def phase(self, name: str, span: int | None = None) -> PhaseLoad:
        """The load of 'prefill' or 'decode'."""
        have = {part: self._column(f"{name}_{part}") for part in _LOADS}
        load = PhaseLoad(
            reqs=have["reqs"], tokens=have["tokens"], kv_tokens=have["kv"], qq=have["qq"], qk=have["qk"],
            sampled_rows=have["sampled"], prompts=name == "prefill",
        )  # fmt: skip
        return load if span is None else replace(load, windowed={span: self._windowed(name, span, load)})

    def _windowed(self, name: str, span: int, load: PhaseLoad) -> tuple[Floats, Floats]:
        """(Σk, pairs) under a window: of the listed requests, else of requests of the mean size."""
        known = self.windows.filter(pl.col("span") == span)
        joined = self.steps.select("step_id").join(known, on="step_id", how="left", maintain_order="left")
        listed = [joined[f"{name}_{part}"].cast(pl.Float64).fill_null(np.nan).to_numpy() for part in ("kv", "pairs")]
        mean = attention(load, heads_q=1, heads_kv=1, dim_qk=1, dim_v=0, window=span, activation_bytes=0, kv_bytes=1)
        return (
            np.where(np.isnan(listed[0]), mean.bytes, listed[0]), np.where(np.isnan(listed[1]), mean.flops / 2, listed[1]),
        )  # fmt: skip

    def _column(self, name: str) -> Floats:
        return self.steps[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def attention_costs(
    rows: pl.DataFrame, geometry: dict[int, Heads], loads: StepLoads, model: ModelShape | None
) -> pl.DataFrame:
    """kernel_id, flops, bytes of attention rows that have `layer`, `layers`, `gid`, `weight` (0: a mere wrapper), busy_ns,
    prefill_ns, decode_ns, kind.

    `geometry` is what operands say per gid; rows without take the model's. A layer's cost is given once, to the rows of
    one phase where kernels serve one phase only, else to all of them by time.
    """
    calls = _calls(rows, geometry, model)
    if not calls.height or not loads.steps.height:
        return pl.DataFrame(schema={"kernel_id": pl.Int64, "flops": pl.Float64, "bytes": pl.Float64})
    parts = []
    for (shape, span), part in calls.group_by("shape", "span"):
        heads = None if shape is None or int(str(shape)) < 0 else geometry[int(str(shape))]
        costs = [
            _phase_cost(loads, name, heads, None if span is None else int(str(span)), model)
            for name in ("prefill", "decode")
        ]
        table = loads.steps.select("step_id").with_columns(
            **{f"{name}_{unit}": pl.Series(np.broadcast_to(getattr(cost, unit), loads.steps.height).astype(np.float64))
               for name, cost in zip(("prefill", "decode"), costs, strict=True) for unit in ("flops", "bytes")}
        )  # fmt: skip
        parts.append(part.join(table, on="step_id", how="inner"))
    priced = pl.concat(parts)
    return _divided(rows.join(priced, on=[*STEP, "layer"], how="inner"))


def _calls(rows: pl.DataFrame, geometry: dict[int, Heads], model: ModelShape | None) -> pl.DataFrame:
    """One row per step and layer: the group its geometry comes from (-1: the model's), and its window."""
    known = pl.col("gid").is_in(list(geometry))
    calls = (
        rows.filter(pl.col("step_id").is_not_null() & (pl.col("layer") > 0)).group_by([*STEP, "layer"], maintain_order=True)
        .agg(pl.col("layers").first(), pl.col("gid").filter(known).first().alias("shape"),
             pl.col("name").str.contains("(?i)sliding").any().alias("slides"))
    )  # fmt: skip
    calls = calls.with_columns(pl.col("shape").fill_null(-1).cast(pl.Int64))
    if model is None:  # no window is known; a kernel that says it has one is left out
        calls = calls.filter((pl.col("shape") >= 0) & ~pl.col("slides").fill_null(value=False))
        return calls.with_columns(span=pl.lit(None, dtype=pl.Int64)).drop("slides", "layers")
    if len(model.window_counts) > 1 or model.latent is not None:
        calls = calls.filter(pl.col("layers") == model.layers)
    spans = pl.DataFrame(
        {"layer": range(1, model.layers + 1), "span": list(model.windows)},
        schema={"layer": pl.UInt32, "span": pl.Int64},
    )
    calls = calls.with_columns(pl.col("layer").cast(pl.UInt32)).join(spans, on="layer", how="left")
    if len(model.window_counts) == 1:
        calls = calls.with_columns(span=pl.lit(model.windows[0], dtype=pl.Int64))
    return calls.drop("slides", "layers")


def _phase_cost(loads: StepLoads, name: str, heads: Heads | None, span: int | None, model: ModelShape | None) -> Cost:
    """Of one layer, per step. Latent attention is the model's affair, whatever the operands look like."""
    load = loads.phase(name, span)
    if model is not None and model.latent is not None:
        pair = (load, PhaseLoad()) if name == "prefill" else (PhaseLoad(), load)
        return step_cost(model, "attention", *pair).times(1 / model.layers)
    if heads is None and model is not None:
        heads = Heads(
            heads_q=model.heads_q, heads_kv=model.heads_kv, dim_qk=model.dim_qk, dim_v=model.dim_v,
            activation_bytes=model.activation_bytes, kv_bytes=model.kv_bytes,
        )  # fmt: skip
    if heads is None:
        raise AssertionError("a call without geometry was kept")
    return attention(
        load, heads_q=heads.heads_q, heads_kv=heads.heads_kv, dim_qk=heads.dim_qk, dim_v=heads.dim_v, window=span,
        activation_bytes=heads.activation_bytes, kv_bytes=heads.kv_bytes,
    )  # fmt: skip


def _divided(rows: pl.DataFrame) -> pl.DataFrame:
    """Each phase's cost to its own kernels where there are some, else to those that serve both."""
    mixed = (pl.col("kind") == "mixed") & (pl.col("busy_ns") > 0)
    rows = rows.with_columns(
        prefill_only=mixed & (pl.col("decode_ns") == 0).fill_null(value=False),
        decode_only=mixed & (pl.col("prefill_ns") == 0).fill_null(value=False),
    )
    call = [*STEP, "layer"]
    both = ~pl.col("prefill_only") & ~pl.col("decode_only")
    total: dict[str, pl.Expr] = {"flops": pl.lit(0.0), "bytes": pl.lit(0.0)}
    for phase in ("prefill", "decode"):
        own = pl.col(f"{phase}_only")
        takes = pl.when(own.any().over(call)).then(own).otherwise(both)
        weight = pl.when(takes).then(pl.col("weight")).otherwise(0)
        share = weight / weight.sum().over(call)
        for unit in ("flops", "bytes"):
            part = pl.when(weight > 0).then(share * pl.col(f"{phase}_{unit}")).otherwise(0.0)
            total[unit] = total[unit] + part
    return rows.select("kernel_id", **total)
