"""Where the cost of each activity comes from: operands, a capture's operands, the model's configuration; in this order."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzers.costing.contexts import StepLoads, attention_costs
from analyzers.costing.instances import shares
from analyzers.costing.layers import model_costs, nothing
from analyzers.costing.operands import operands
from analyzers.costing.operators import COMPOSITE, Call, Heads, call_cost
from analyzers.costs.shape import ModelShape
from traces.errors import UsageProblem

COSTS = ["kernel_id", "flops", "bytes"]
_EIGHT_BIT = r"(?i)e4m3|e5m2|fp8"


def operator_calls(groups: pl.DataFrame) -> dict[int, Call]:
    """Per group with a known operator, what one call costs. Copies go by what the recording says they moved."""
    found: dict[int, Call] = {}
    known = groups.filter(pl.col("op_name").is_not_null() & pl.col("op_shapes").is_not_null() & ~pl.col("kind").is_in(["memset"]))
    for gid, name, category, shapes, dtypes in known.select("gid", "op_name", "category", "op_shapes", "op_dtypes").rows():
        if category == "memcpy" and name != "aten::copy_":
            continue
        call = call_cost(name, category or "other", operands(shapes, dtypes))
        if call is not None:
            found[gid] = call
    return found


def of_one_rank(model: ModelShape | None, calls: Mapping[int, Call]) -> ModelShape | None:
    """The model's share on a rank: recorded attention calls show how many query heads a rank has."""
    seen = {call.heads.heads_q for call in calls.values() if call.heads is not None}
    if model is None or len(seen) != 1 or model.latent is not None:
        return model
    ranks, rest = divmod(model.heads_q, seen.pop())
    if rest or ranks < 2:
        return model
    try:
        return model.divided(ranks)
    except UsageProblem:
        return None


def from_operands(rows: pl.DataFrame, calls: Mapping[int, Call], loads: StepLoads, model: ModelShape | None) -> pl.DataFrame:
    """kernel_id, flops, bytes, soft, dtype by operands, and recorded sizes of copies."""
    fixed = pl.DataFrame(
        [(gid, float(call.cost.flops), float(call.cost.bytes), call.soft, call.dtype) for gid, call in calls.items() if call.cost],
        schema={"gid": pl.Int64, "flops": pl.Float64, "bytes": pl.Float64, "soft": pl.Boolean, "dtype": pl.String}, orient="row",
    )  # fmt: skip
    counted = shares(rows).join(rows.select("kernel_id", "gid"), on="kernel_id")
    charged = counted.join(_wrappers(rows), on="kernel_id", how="left").join(fixed, on="gid")
    charged = charged.with_columns(pl.when(pl.col("wraps")).then(0.0).otherwise(pl.col(unit) * pl.col("share")).alias(unit) for unit in ("flops", "bytes"))
    copied = rows.filter(pl.col("copied_bytes").is_not_null() & pl.col("category").is_in(["memcpy", "memset"]))
    passes = pl.when(pl.col("name").str.contains("(?i)DtoD|Device -> Device")).then(2).otherwise(1)
    copied = copied.select("kernel_id", flops=pl.lit(0.0), bytes=(pl.col("copied_bytes") * passes).cast(pl.Float64), soft=pl.lit(False), dtype=pl.lit(None, dtype=pl.String))
    charged = charged.select(*COSTS, "soft", "dtype").join(copied.select("kernel_id"), on="kernel_id", how="anti")
    geometry = {gid: call.heads for gid, call in calls.items() if call.heads is not None}
    return pl.concat([charged, copied, _attending(rows, geometry, calls, loads, model)])


def _wrappers(rows: pl.DataFrame) -> pl.DataFrame:
    """kernel_id and `wraps` of CPU segments whose operator computes through operators inside it: those have the cost."""
    segments = rows.filter(pl.col("op_start_ns").is_not_null())
    whole = pl.col("dur_ns").sum().over("rank", "stream", "op_start_ns", "gid") >= pl.col("op_dur_ns")
    return segments.select("kernel_id", wraps=pl.col("name").str.contains(COMPOSITE.pattern).fill_null(value=False) & ~whole)


def _attending(
    rows: pl.DataFrame, geometry: Mapping[int, Heads], calls: Mapping[int, Call], loads: StepLoads, model: ModelShape | None
) -> pl.DataFrame:
    attention = rows.filter((pl.col("category") == "attention") & pl.col("kind").is_not_null())
    seen = attention.filter(pl.col("gid").is_in(list(geometry)))
    touched = attention.join(seen.select("rank", "device", "step_id", "layer").unique(), on=["rank", "device", "step_id", "layer"], how="semi")
    fixed = [gid for gid, call in calls.items() if call.cost is not None]
    touched = touched.filter(~pl.col("gid").is_in(fixed)).join(_wrappers(rows), on="kernel_id", how="left")
    touched = touched.with_columns(weight=pl.when(pl.col("wraps").fill_null(value=False)).then(0).otherwise("weight"))
    costs = attention_costs(touched, dict(geometry), loads, model)
    dtypes = pl.DataFrame([(gid, calls[gid].dtype) for gid in geometry], schema={"gid": pl.Int64, "dtype": pl.String}, orient="row")
    placed = touched.select("kernel_id", "gid").join(dtypes, on="gid", how="left").select("kernel_id", "dtype")
    return costs.join(placed, on="kernel_id").select(*COSTS, soft=pl.lit(False), dtype="dtype").drop_nans(["flops", "bytes"])


def from_model(rows: pl.DataFrame, loads: StepLoads, model: ModelShape | None) -> pl.DataFrame:
    """kernel_id, flops, bytes, soft, role, least_bytes by the model's configuration; empty where it is not known."""
    if model is None:
        return nothing()
    inside = rows.filter(pl.col("step_id").is_not_null() & pl.col("tokens").is_not_null())
    attention = attention_costs(inside.filter(pl.col("category") == "attention"), {}, loads, model)
    return pl.concat([
        model_costs(model, inside),
        attention.select(
            *COSTS, soft=pl.lit(False), role=pl.lit(None, dtype=pl.String), least_bytes=pl.lit(None, dtype=pl.Float64)
        ),
    ]).drop_nans(["flops", "bytes"])  # fmt: skip


def chosen(rows: pl.DataFrame, direct: pl.DataFrame, modelled: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Rows with the first source that knows their cost, the source's name, and the type they compute in."""
    both = rows.join(direct, on="kernel_id", how="left", maintain_order="left").join(modelled, on="kernel_id", how="left", suffix="_model", maintain_order="left")
    have = pl.col("flops").is_not_null()
    source = pl.when(have).then(pl.when("captured").then(pl.lit("capture")).otherwise(pl.lit("shapes"))).when(pl.col("flops_model").is_not_null()).then(pl.lit("model"))
    columns = [pl.when(have).then(pl.col(name)).otherwise(pl.col(f"{name}_model")).alias(name) for name in ("flops", "bytes", "soft")]
    columns.append(pl.when(~have).then("least_bytes").alias("least_bytes"))
    category = pl.when((pl.col("role") == "logits") & (pl.col("category") == "gemm")).then(pl.lit("logits")).otherwise("category")
    narrow = pl.when((pl.col("category") == "moe") & pl.col("name").str.contains(_EIGHT_BIT)).then(pl.lit("fp8"))
    return both.with_columns(*columns, cost_source=source, category=category, dtype=pl.coalesce("dtype", narrow))
