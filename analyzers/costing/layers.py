"""Costs from the model's configuration, by where in a layer an activity stands: for graphs that tell no shapes.

Which product is which follows from its position between two attention calls (analyzers/costing/sequence.py): before
attention the projection of queries, keys and values, behind it the output projection and the feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.costing.sequence import STEP
from analyzers.costs.attention import kv_write
from analyzers.costs.cost import Cost
from analyzers.costs.logits import embedding, sampling
from analyzers.costs.moe import expected_experts
from analyzers.costs.norms import activation, layer_norm, rms_norm, rotary
from analyzers.costs.shape import ModelShape

_SCHEMA = {
    "kernel_id": pl.Int64, "flops": pl.Float64, "bytes": pl.Float64, "soft": pl.Boolean, "role": pl.String,
    "least_bytes": pl.Float64,
}  # fmt: skip
_GAP = [*STEP, "layer"]
EXPERT_PRODUCT = "|".join((
    "(?i)^bmm_", "matmul_ogs", "group(ed)?_?gemm", "fused_moe_kernel", "m_?grouped", "GroupProblemShape", "moe.*gemm",
    "gemm.*moe", r"moe.*(mfma|ck_tile|stage[12])",
))  # fmt: skip
EXPERT_COMBINE = r"(?i)finalize|combine|moe_sum|unpermute|scatter"
_CACHE_WRITE = r"(?i)reshape_and_cache|concat_and_cache|store|set_(mla_)?kv|append|cache_update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix product of a layer: [rows, k] · [k, n]."""

    role: str
    k: int
    n: int
    bias: bool = False


def model_costs(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    """kernel_id, flops, bytes, soft, role, least_bytes of the rows that the model explains; attention has its own module.

    `least_bytes` is known for experts: what is read where all tokens take the same ones; `bytes` is for uniform routing.

    `rows` as sequence.layered returns them, with `tokens` and `sampled` of their step, name, category, in_graph, weight.
    Only steps with as many attention calls as the model has layers are looked at. What a copy or an elementwise kernel moves
    no configuration tells, so these get nothing.
    """
    rows = rows.filter((pl.col("layers") == model.layers) & (pl.col("tokens") > 0))
    if not rows.height:
        return nothing()
    layer, writes = pl.col("layer"), pl.col("name").str.contains(_CACHE_WRITE)
    parts = [
        _products(model, rows.filter(pl.col("category").is_in(["gemm", "logits"]) & (pl.col("products") > 0))),
        _norms(model, rows.filter(pl.col("category") == "norm")),
        _experts(model, rows.filter((pl.col("category") == "moe") & (layer > 0))),
        _activations(model, rows.filter((pl.col("category") == "activation") & (layer > 0))),
        _rotations(model, rows.filter((pl.col("category") == "rope") & (layer < model.layers)), rows),
        _writes(model, rows.filter((pl.col("category") == "kv_cache") & (layer < model.layers) & writes)),
        _embeddings(model, rows.filter((pl.col("category") == "embedding") & (layer == 0))),
        _samplers(model, rows.filter((pl.col("category") == "sampling") & (layer == model.layers))),
    ]  # fmt: skip
    return pl.concat(parts)


def nothing() -> pl.DataFrame:
    """No row explained."""
    return pl.DataFrame(schema=_SCHEMA)


def _products(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.filter(pl.col("product") > 0)
    roles = _roles(model, rows.select("layer", "products").unique())
    found = rows.join(roles, on=["layer", "products", "product"], how="inner")
    m = np.where(found["role"].to_numpy() == "logits", _numbers(found, "sampled"), _numbers(found, "tokens"))
    size = model.activation_bytes
    plain = np.isin(found["role"].to_numpy(), ["logits", "router"])
    weight = np.where(plain, size, model.linear_bytes)
    k, n, bias = (_numbers(found, name) for name in ("k", "n", "bias"))
    flops = 2 * m * k * n + bias * m * n
    moved = m * k * size + k * n * weight + bias * n * size + m * n * size
    share = (pl.col("weight") / pl.col("weight").sum().over([*_GAP, "product"])).alias("share")
    return _result(found.with_columns(share), Cost(flops=flops, bytes=moved), role=True)


def _roles(model: ModelShape, seen: pl.DataFrame) -> pl.DataFrame:
    """layer, products, product → role, k, n, bias. `seen` are the numbers of products between attention calls.

    Engines fuse all, or leave queries, keys and values apart, or gate and up; the way that explains most gaps is taken.
    """
    seen = seen.cast({"layer": pl.UInt32, "products": pl.Int64})
    return max(_options(model), key=lambda option: seen.join(option, on=["layer", "products"], how="semi").height)


@cache
def _options(model: ModelShape) -> tuple[pl.DataFrame, ...]:
    """Every way of fusing, as layer, products, product, role, k, n, bias."""
    names = {"layer": pl.UInt32, "products": pl.Int64, "product": pl.Int64, "role": pl.String, "k": pl.Int64, "n": pl.Int64,
             "bias": pl.Boolean}  # fmt: skip
    options = []
    for qkv_apart in (False, True):
        for gate_apart in (False, True):
            cells = [
                (gap, len(found), i + 1, each.role, each.k, each.n, each.bias)
                for gap in range(model.layers + 1)
                for found in _between(model, gap, qkv_apart=qkv_apart, gate_apart=gate_apart)
                for i, each in enumerate(found)
            ]
            options.append(pl.DataFrame(cells if model.latent is None else [], schema=names, orient="row"))
    return tuple(options)


def _between(model: ModelShape, gap: int, *, qkv_apart: bool, gate_apart: bool) -> list[list[Product]]:
    """Products between attention calls `gap` − 1 and `gap`; behind the last with and without the head."""
    body = _feed_forward(model, gap - 1, apart=gate_apart) if gap else []
    if gap < model.layers:
        return [[*body, *_projection(model, apart=qkv_apart)]]
    return [[*body, Product(role="logits", k=model.hidden, n=model.vocab)], body]


def _projection(model: ModelShape, *, apart: bool) -> list[Product]:
    """Before attention."""
    widths = [model.heads_q * model.dim_qk, model.heads_kv * model.dim_qk, model.heads_kv * model.dim_v]
    return [Product(role="qkv", k=model.hidden, n=n, bias=model.qkv_bias) for n in (widths if apart else [sum(widths)])]


def _feed_forward(model: ModelShape, layer: int, *, apart: bool) -> list[Product]:
    """Behind attention: its output projection, a router, dense or shared matrices."""
    found = [Product(role="o", k=model.heads_q * model.dim_v, n=model.hidden, bias=model.out_bias)]
    gates = 2 if model.gated else 1
    width = model.intermediate
    if model.moe is not None and model.moe_layers[layer]:
        found.append(Product(role="router", k=model.hidden, n=model.moe.experts, bias=model.moe.bias))
        width = model.moe.shared_width
    if width:
        matrices, each = (gates, width) if apart else (1, gates * width)
        found += [Product(role="gate_up", k=model.hidden, n=each, bias=model.mlp_bias)] * matrices
        found.append(Product(role="down", k=width, n=model.hidden, bias=model.mlp_bias))
    return found


def _norms(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    """Hidden states, and per head between the projection and attention where the model has such."""
    per_head = (
        pl.lit(model.qk_norm)
        & (pl.col("layer") < model.layers)
        & (pl.col("products") > 0)
        & (pl.col("product") == pl.col("products"))
    )
    marked = rows.with_columns(per_head=per_head).with_columns(
        place=pl.int_range(pl.len()).over([*_GAP, "per_head"]), of=pl.len().over([*_GAP, "per_head"]), share=pl.lit(1.0)
    )
    wide, narrow = marked.filter(~pl.col("per_head")), marked.filter("per_head")
    size, tokens = model.activation_bytes, _numbers(wide, "tokens")
    whole = layer_norm(tokens, model.hidden, element_bytes=size) if model.layer_norm else _hidden_norm(wide, model)
    heads = (
        pl.when(pl.col("of") != 2)
        .then((model.heads_q + model.heads_kv) / pl.col("of"))
        .when(pl.col("place") == 0)
        .then(model.heads_q)
        .otherwise(model.heads_kv)
    )
    narrow = narrow.with_columns(heads=heads)
    each = rms_norm(
        _numbers(narrow, "tokens") * _numbers(narrow, "heads"), model.dim_qk, element_bytes=size, residual=False
    )
    return pl.concat([_result(wide, whole), _result(narrow, each)])


def _hidden_norm(rows: pl.DataFrame, model: ModelShape) -> Cost:
    """With the residual added on the way in, but for the first of a step."""
    first = (rows["layer"].to_numpy() == 0) & (rows["place"].to_numpy() == 0)
    tokens, size = _numbers(rows, "tokens"), model.activation_bytes
    added, plain = (rms_norm(tokens, model.hidden, element_bytes=size, residual=residual) for residual in (True, False))
    return Cost(flops=np.where(first, plain.flops, added.flops), bytes=np.where(first, plain.bytes, added.bytes))


def _experts(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    """Two products with the experts' weights, or one kernel for both; routing before, summing up behind."""
    moe = model.moe
    if moe is None or not rows.height:
        return nothing()
    sparse = [i + 1 for i, each in enumerate(model.moe_layers) if each]
    routes, combines = (
        pl.col("name").str.contains(pattern).fill_null(value=False) for pattern in ("(?i)routing", EXPERT_COMBINE)
    )
    multiplies = pl.col("name").str.contains(EXPERT_PRODUCT).fill_null(value=False) & ~combines
    marked = rows.filter(pl.col("layer").is_in(sparse)).with_columns(
        work=pl.when(routes).then(pl.lit("route")).when(multiplies).then(pl.lit("product"))
        .when(combines).then(pl.lit("combine")).otherwise(pl.lit("route"))
    )  # fmt: skip
    marked = marked.with_columns(place=pl.int_range(pl.len()).over([*_GAP, "work"]), of=pl.len().over([*_GAP, "work"]))
    product = marked.filter(pl.col("work") == "product")
    pairs = product.filter(pl.col("of") % 2 == 0)
    single = product.filter(pl.col("of") % 2 == 1)
    up = pairs.filter(pl.col("place") % 2 == 0).with_columns(share=2 / pl.col("of"))
    down = pairs.filter(pl.col("place") % 2 == 1).with_columns(share=2 / pl.col("of"))
    others = {
        name: marked.filter(pl.col("work") == name).with_columns(share=1 / pl.col("of"))
        for name in ("combine", "route")
    }
    size = model.activation_bytes
    combined, routed = (_numbers(others[name], "tokens") for name in ("combine", "route"))
    outputs = combined * (moe.top_k / moe.ranks) * model.hidden  # one per token and expert, to be summed up
    single = single.with_columns(share=1 / pl.col("of"))
    return pl.concat([
        *(_result(part, _expert_product(model, part, up), least=_expert_product(model, part, up, least=True))
          for part, up in ((up, (True,)), (down, (False,)), (single, (True, False)))),
        _result(others["combine"], Cost(flops=2 * outputs, bytes=(outputs + combined * model.hidden) * size)),
        _result(others["route"], Cost(flops=routed * moe.experts, bytes=routed * moe.experts * size)),
    ])  # fmt: skip


def _expert_product(model: ModelShape, part: pl.DataFrame, ups: tuple[bool, ...], *, least: bool = False) -> Cost:
    """Products of the routed experts: up (and gate, the activation fused), down, or both; `least`: all tokens alike."""
    moe = model.moe
    if moe is None:
        raise AssertionError(model.architecture)
    tokens = _numbers(part, "tokens")
    rows = tokens * (moe.top_k / moe.ranks)
    distinct = float(moe.top_k) if least else expected_experts(tokens, moe.experts, moe.top_k)
    if moe.ranks > 1:  # a rank with none of the experts reached reads nothing
        distinct = 0.0 if least else distinct / moe.ranks
    weights = sum(model.hidden * moe.width * (2 if up and model.gated else 1) for up in ups)
    passed = rows * (model.hidden + moe.width) * model.activation_bytes * len(ups)
    return Cost(flops=2 * rows * weights, bytes=distinct * weights * model.expert_bytes + passed)


def _activations(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    sparse = np.array([False, *model.moe_layers])[rows["layer"].to_numpy()]
    routed = model.moe.top_k / model.moe.ranks * model.moe.width if model.moe is not None else 0
    width = np.where(sparse, routed, model.intermediate).astype(np.float64)
    cost = activation(_numbers(rows, "tokens") * width, 1, gated=model.gated, element_bytes=model.activation_bytes)
    return _result(rows.with_columns(share=1 / pl.len().over(_GAP)), cost)


def _rotations(model: ModelShape, rows: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    """Queries and keys together; a kernel that stores as well writes the cache, where none else does."""
    heads = model.heads_q + (1 if model.latent else model.heads_kv)
    tokens = _numbers(rows, "tokens")
    turned = rotary(tokens, heads, model.rotary_dim, element_bytes=model.activation_bytes)
    stored = kv_write(tokens, kv_width=model.kv_width, activation_bytes=model.activation_bytes, kv_bytes=model.kv_bytes)
    writers = (
        every.filter((pl.col("category") == "kv_cache") & pl.col("name").str.contains(_CACHE_WRITE))
        .select(_GAP)
        .unique()
    )
    alone = rows.join(writers.with_columns(written=True), on=_GAP, how="left", maintain_order="left")
    stores = (
        (alone["written"].is_null() & alone["name"].str.contains("(?i)store|cache|kv"))
        .fill_null(value=False)
        .to_numpy()
    )
    cost = Cost(flops=turned.flops, bytes=turned.bytes + stores * stored.bytes)
    return _result(rows.with_columns(share=1 / pl.len().over(_GAP)), cost)


def _writes(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    cost = kv_write(
        _numbers(rows, "tokens"),
        kv_width=model.kv_width,
        activation_bytes=model.activation_bytes,
        kv_bytes=model.kv_bytes,
    )
    return _result(rows.with_columns(share=1 / pl.len().over(_GAP)), cost)


def _embeddings(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    cost = embedding(_numbers(rows, "tokens"), model.hidden, element_bytes=model.activation_bytes)
    return _result(rows.with_columns(share=1 / pl.len().over(_GAP)), cost)


def _samplers(model: ModelShape, rows: pl.DataFrame) -> pl.DataFrame:
    """All of a step's sampling kernels together make two passes over the logits."""
    cost = sampling(_numbers(rows, "sampled"), model.vocab)
    return _result(rows.with_columns(share=pl.col("weight") / pl.col("weight").sum().over(_GAP)), cost, soft=True)


def _numbers(rows: pl.DataFrame, name: str) -> NDArray[np.float64]:
    return rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _result(
    rows: pl.DataFrame, cost: Cost, *, soft: bool = False, role: bool = False, least: Cost | None = None
) -> pl.DataFrame:
    share = _numbers(rows, "share")
    wide = [cost.flops, cost.bytes, np.nan if least is None else least.bytes]
    flops, moved, fewest = (np.broadcast_to(np.asarray(part, dtype=np.float64), share.shape) * share for part in wide)
    return rows.select("kernel_id", role=pl.col("role") if role else pl.lit(None, dtype=pl.String)).select(
        "kernel_id", flops=pl.Series(flops), bytes=pl.Series(moved), soft=pl.lit(soft), role="role",
        least_bytes=pl.Series(fewest).fill_nan(None),
    )  # fmt: skip
