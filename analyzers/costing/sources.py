"""Where the cost of each activity comes from: operands, a capture's operands, the model's configuration; in this order."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzers.costing.collectives import collective_call, from_layers
from analyzers.costing.contexts import StepLoads, attention_costs
from analyzers.costing.instances import shares
from analyzers.costing.layers import model_costs, nothing
from analyzers.costing.operands import operands
from analyzers.costing.operators import COMPOSITE, Call, call_cost
from analyzers.costs.shape import ModelShape
from traces.errors import UsageProblem

COSTS = ["kernel_id", "flops", "bytes"]
_LAYER = ["rank", "device", "step_id", "layer"]
_NO_TYPE = pl.lit(None, dtype=pl.String)
_EIGHT_BIT = r"(?i)e4m3|e5m2|fp8"


def operator_calls(groups: pl.DataFrame, ranks: int | None = None) -> dict[int, Call]:
    """Per group with a known operator, what one call costs. Copies go by what the recording says they moved.

    `ranks` take part in a collective.
    """
    found: dict[int, Call] = {}
    known = groups.filter(
        pl.col("op_name").is_not_null() & pl.col("op_shapes").is_not_null() & ~pl.col("kind").is_in(["memset"])
    )
    for gid, kernel, name, category, shapes, dtypes in known.select(
        "gid", "name", "op_name", "category", "op_shapes", "op_dtypes"
    ).rows():
        if category == "memcpy" and name != "aten::copy_":
            continue
        arguments = operands(shapes, dtypes)
        sends = category == "comm"
        call = (
            collective_call(kernel, name, arguments, ranks)
            if sends
            else call_cost(name, category or "other", arguments)
        )
        if call is not None:
            found[gid] = call
    return found


def of_one_rank(model: ModelShape | None, calls: Mapping[int, Call], *, may_be_shared: bool) -> ModelShape | None:
    """The model's share on a rank: recorded attention calls show how many query heads a rank has.

    None where they do not and `may_be_shared`: several ranks took part, and nothing says how they share the model.
    """
    seen = {call.heads.heads_q for call in calls.values() if call.heads is not None}
    if model is None or len(seen) != 1 or model.latent is not None:
        return None if may_be_shared else model
    ranks, rest = divmod(model.heads_q, seen.pop())
    if rest or ranks < 2:
        return model
    try:
        return model.divided(ranks)
    except UsageProblem:
        return None


def from_operands(
    rows: pl.DataFrame, calls: Mapping[int, Call], loads: StepLoads, model: ModelShape | None
) -> pl.DataFrame:
    """kernel_id, flops, bytes, soft, dtype by operands, and by recorded sizes of copies and fills."""
    copied = _copies(rows)
    charged = _charged(rows, calls).join(copied.select("kernel_id"), on="kernel_id", how="anti")
    return pl.concat([charged, copied, _attending(rows, calls, loads, model)])


def _charged(rows: pl.DataFrame, calls: Mapping[int, Call]) -> pl.DataFrame:
    """Operators whose operands tell the cost, divided over the activities of a call."""
    schema = {"gid": pl.Int64, "flops": pl.Float64, "bytes": pl.Float64, "soft": pl.Boolean, "dtype": pl.String}
    cells = [
        (gid, float(call.cost.flops), float(call.cost.bytes), call.soft, call.dtype)
        for gid, call in calls.items()
        if call.cost is not None
    ]
    fixed = pl.DataFrame(cells, schema=schema, orient="row")
    counted = shares(rows).join(rows.select("kernel_id", "gid"), on="kernel_id").join(fixed, on="gid")
    counted = counted.join(_wrappers(rows), on="kernel_id", how="left")
    share = pl.when(pl.col("wraps").fill_null(value=False)).then(0.0).otherwise("share")
    return counted.select("kernel_id", pl.col("flops") * share, pl.col("bytes") * share, "soft", "dtype")


def _copies(rows: pl.DataFrame) -> pl.DataFrame:
    """A copy within a device reads and writes its memory, any other does one of the two."""
    copied = rows.filter(pl.col("copied_bytes").is_not_null() & pl.col("category").is_in(["memcpy", "memset"]))
    passes = pl.when(pl.col("name").str.contains("(?i)DtoD|Device -> Device")).then(2.0).otherwise(1.0)
    moved = pl.col("copied_bytes") * passes
    return copied.select("kernel_id", flops=pl.lit(0.0), bytes=moved, soft=pl.lit(False), dtype=_NO_TYPE)


def _wrappers(rows: pl.DataFrame) -> pl.DataFrame:
    """kernel_id and `wraps` of CPU segments whose operator computes through operators inside it: those have the cost."""
    segments = rows.filter(pl.col("op_start_ns").is_not_null())
    whole = pl.col("dur_ns").sum().over("rank", "stream", "op_start_ns", "gid") >= pl.col("op_dur_ns")
    composite = pl.col("name").str.contains(COMPOSITE.pattern).fill_null(value=False)
    return segments.select("kernel_id", wraps=composite & ~whole)


def _attending(
    rows: pl.DataFrame, calls: Mapping[int, Call], loads: StepLoads, model: ModelShape | None
) -> pl.DataFrame:
    """Attention calls with recorded operands; their contexts are the step's."""
    geometry = {gid: call.heads for gid, call in calls.items() if call.heads is not None}
    attention = rows.filter((pl.col("category") == "attention") & pl.col("kind").is_not_null())
    layers = attention.filter(pl.col("gid").is_in(list(geometry))).select(_LAYER).unique()
    fixed = [gid for gid, call in calls.items() if call.cost is not None]
    taking = attention.filter(~pl.col("gid").is_in(fixed)).join(layers, on=_LAYER, how="semi")
    taking = taking.join(_wrappers(rows), on="kernel_id", how="left")
    taking = taking.with_columns(weight=pl.when(pl.col("wraps").fill_null(value=False)).then(0).otherwise("weight"))
    costs = attention_costs(taking, geometry, loads, model).drop_nans(["flops", "bytes"])
    cells = [(gid, calls[gid].dtype) for gid in geometry]
    types = pl.DataFrame(cells, schema={"gid": pl.Int64, "dtype": pl.String}, orient="row")
    placed = taking.select("kernel_id", "gid").join(types, on="gid", how="left")
    return costs.join(placed, on="kernel_id").select(*COSTS, soft=pl.lit(False), dtype="dtype")


def from_model(
    rows: pl.DataFrame, loads: StepLoads, model: ModelShape | None, ranks: int | None = None
) -> pl.DataFrame:
    """kernel_id, flops, bytes, soft, role, least_bytes by the model's configuration; empty where it is not known."""
    if model is None:
        return nothing()
    inside = rows.filter(pl.col("step_id").is_not_null() & pl.col("tokens").is_not_null())
    attention = attention_costs(inside.filter(pl.col("category") == "attention"), {}, loads, model)
    certain = pl.lit(None, dtype=pl.Float64)
    attention = attention.select(*COSTS, soft=pl.lit(False), role=_NO_TYPE, least_bytes=certain)
    parts = [model_costs(model, inside), attention, from_layers(model, inside, ranks)]
    return pl.concat(parts).drop_nans(["flops", "bytes"])


def chosen(rows: pl.DataFrame, direct: pl.DataFrame, modelled: pl.DataFrame) -> pl.DataFrame:
    """Rows with the first source that knows their cost, the source's name, and the type they compute in."""
    both = rows.join(direct, on="kernel_id", how="left", maintain_order="left")
    both = both.join(modelled, on="kernel_id", how="left", suffix="_model", maintain_order="left")
    have = pl.col("flops").is_not_null()
    recorded = pl.when("captured").then(pl.lit("capture")).otherwise(pl.lit("shapes"))
    source = pl.when(have).then(recorded).when(pl.col("flops_model").is_not_null()).then(pl.lit("model"))
    is_head = (pl.col("role") == "logits") & (pl.col("category") == "gemm")
    narrow = (pl.col("category") == "moe") & pl.col("name").str.contains(_EIGHT_BIT)
    return both.with_columns(
        *(pl.when(have).then(name).otherwise(f"{name}_model").alias(name) for name in ("flops", "bytes", "soft")),
        least_bytes=pl.when(~have).then("least_bytes"), cost_source=source,
        category=pl.when(is_head).then(pl.lit("logits")).otherwise("category"),
        dtype=pl.coalesce("dtype", pl.when(narrow).then(pl.lit("fp8"))),
    )  # fmt: skip
