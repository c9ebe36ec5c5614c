"""What one step of a model costs, per category of kernel, for any mix of prefill and decode.

`pieces` gives the kernels of a category as separate costs, since each has a roof of its own; `step_cost` is their sum.
"""

from __future__ import annotations

from collections.abc import Callable

from analyzers.costs.attention import PhaseLoad, attention, kv_write, latent_attention
from analyzers.costs.cost import NOTHING, Cost, Quantity
from analyzers.costs.gemm import gemm
from analyzers.costs.logits import embedding, logits, sampling
from analyzers.costs.moe import expected_experts, experts_mlp
from analyzers.costs.norms import activation, layer_norm, rms_norm, rotary, stream
from analyzers.costs.roof import Peaks, roof_time_ns
from analyzers.costs.shape import ModelShape
from traces.errors import UsageProblem

IDLE = PhaseLoad()


def pieces(model: ModelShape, category: str, prefill: PhaseLoad = IDLE, decode: PhaseLoad = IDLE) -> tuple[Cost, ...]:
    """The kernels of `category` in one step with these two phases, all layers, as costs with a roof each.

    The phases share weights, so GEMMs, experts and logits see the sum of their rows; attention sees each phase's own.
    Raises UsageProblem for a category without a model (collectives, copies).
    """
    make = _CATEGORIES.get(category)
    if make is None:
        raise UsageProblem(f"no cost model for category {category!r}", hint=f"known: {', '.join(sorted(_CATEGORIES))}")
    return tuple(make(model, prefill, decode))


def step_cost(model: ModelShape, category: str, prefill: PhaseLoad = IDLE, decode: PhaseLoad = IDLE) -> Cost:
    """FLOPs and bytes of `category` in one step."""
    total = NOTHING
    for piece in pieces(model, category, prefill, decode):
        total = total + piece
    return total


def step_roof_ns(
    model: ModelShape, category: str, peaks: Peaks, prefill: PhaseLoad = IDLE, decode: PhaseLoad = IDLE
) -> Quantity:
    """Σ max(F/π, B/β) over the kernels of `category`, in ns."""
    total: Quantity = 0.0
    for piece in pieces(model, category, prefill, decode):
        total = total + roof_time_ns(piece, peaks)
    return total


def _linear(model: ModelShape, rows: Quantity, k: float, n: float, count: float, *, bias: bool = False) -> Cost:
    size = model.activation_bytes
    return gemm(rows, k, n, a_bytes=size, weight_bytes=model.linear_bytes, out_bytes=size, bias=bias).times(count)


def _gemm(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    rows = prefill.tokens + decode.tokens
    hidden, layers = model.hidden, model.layers
    found = _latent_gemms(model, rows) if model.latent else _qkv_gemms(model, rows)
    found.append(_linear(model, rows, model.heads_q * model.dim_v, hidden, layers, bias=model.out_bias))
    gates = 2 if model.gated else 1
    dense = [(model.intermediate, model.dense_layers)]
    if model.moe is not None:
        sparse = sum(model.moe_layers)
        found.append(_linear(model, rows, hidden, model.moe.experts, sparse))
        dense.append((model.moe.shared_width, sparse))
    for width, count in dense:
        if width and count:
            found.append(_linear(model, rows, hidden, gates * width, count, bias=model.mlp_bias))
            found.append(_linear(model, rows, width, hidden, count, bias=model.mlp_bias))
    return found


def _qkv_gemms(model: ModelShape, rows: Quantity) -> list[Cost]:
    width = model.heads_q * model.dim_qk + model.heads_kv * (model.dim_qk + model.dim_v)
    return [_linear(model, rows, model.hidden, width, model.layers, bias=model.qkv_bias)]


def _latent_gemms(model: ModelShape, rows: Quantity) -> list[Cost]:
    """Down and up projections of queries, the latent, and the absorbed key and value matrices (per head)."""
    latent = model.latent
    if latent is None:
        raise AssertionError(model.architecture)
    layers, heads = model.layers, model.heads_q
    found = [_linear(model, rows, model.hidden, latent.kv_rank + latent.rope_dim, layers)]
    width = heads * model.dim_qk
    if latent.q_rank:
        found.append(_linear(model, rows, model.hidden, latent.q_rank, layers))
        found.append(_linear(model, rows, latent.q_rank, width, layers))
    else:
        found.append(_linear(model, rows, model.hidden, width, layers))
    for inner, outer in ((latent.nope_dim, latent.kv_rank), (latent.kv_rank, model.dim_v)):
        absorbed = gemm(
            rows, inner, outer, a_bytes=model.activation_bytes, weight_bytes=model.linear_bytes,
            out_bytes=model.activation_bytes,
        )  # fmt: skip
        found.append(absorbed.times(layers * heads))
    return found


def _attention(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    if model.latent is not None:
        return _latent_attention(model, prefill, decode)
    return [
        attention(
            load, heads_q=model.heads_q, heads_kv=model.heads_kv, dim_qk=model.dim_qk, dim_v=model.dim_v,
            window=window, activation_bytes=model.activation_bytes, kv_bytes=model.kv_bytes,
        ).times(count)
        for load in (prefill, decode)
        for window, count in model.window_counts.items()
    ]  # fmt: skip


def _latent_attention(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    """Prompts attend to keys and values expanded per head, single tokens to the latent itself, as engines do it."""
    latent = model.latent
    if latent is None:
        raise AssertionError(model.architecture)
    size = model.activation_bytes
    expanded = attention(
        prefill, heads_q=model.heads_q, heads_kv=model.heads_q, dim_qk=model.dim_qk, dim_v=model.dim_v,
        activation_bytes=size, kv_bytes=size,
    )  # fmt: skip
    absorbed = latent_attention(
        decode, heads=model.heads_q, latent_rank=latent.kv_rank, rope_dim=latent.rope_dim,
        activation_bytes=size, kv_bytes=model.kv_bytes,
    )  # fmt: skip
    return [expanded.times(model.layers), absorbed.times(model.layers)]


def _kv_cache(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    written = kv_write(
        prefill.tokens + decode.tokens, kv_width=model.kv_width, activation_bytes=model.activation_bytes,
        kv_bytes=model.kv_bytes,
    )  # fmt: skip
    return [written.times(model.layers)]


def _moe(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    moe = model.moe
    if moe is None:
        return []
    tokens = (prefill.tokens + decode.tokens) * moe.replicas  # that all expert ranks compute together
    one = experts_mlp(
        tokens / moe.ranks, hidden=model.hidden, width=moe.width, experts=moe.experts, top_k=moe.top_k,
        gated=model.gated, activation_bytes=model.activation_bytes, weight_bytes=model.expert_bytes,
        reached=expected_experts(tokens, moe.experts, moe.top_k) / moe.ranks,
    )  # fmt: skip
    return [one.times(sum(model.moe_layers))]


def _norm(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    rows, size = prefill.tokens + decode.tokens, model.activation_bytes
    each = layer_norm if model.layer_norm else rms_norm
    found = [each(rows, model.hidden, element_bytes=size).times(model.norms_per_layer * model.layers + model.last)]
    if model.qk_norm:
        heads = rows * (model.heads_q + model.heads_kv)
        found.append(rms_norm(heads, model.dim_qk, element_bytes=size, residual=False).times(model.layers))
    return found


def _activation(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    """Of dense, shared and routed widths; engines that fuse the routed one into the experts have no such kernel."""
    rows = prefill.tokens + decode.tokens
    work = [(rows, model.intermediate, model.dense_layers)]
    if model.moe is not None:
        sparse = sum(model.moe_layers)
        routed = rows * model.moe.top_k * model.moe.replicas / model.moe.ranks
        work += [(rows, model.moe.shared_width, sparse), (routed, model.moe.width, sparse)]
    return [
        activation(each, width, gated=model.gated, element_bytes=model.activation_bytes).times(count)
        for each, width, count in work
        if width and count
    ]


def _rope(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    heads = model.heads_q + (1 if model.latent else model.heads_kv)
    one = rotary(prefill.tokens + decode.tokens, heads, model.rotary_dim, element_bytes=model.activation_bytes)
    return [one.times(model.layers)]


def _elementwise(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    """Copies and additions between the named kernels: how many is the engine's affair, that they grow with the rows
    and with the width is not. Only ratios of this cost are meaningful."""
    return [
        stream(prefill.tokens + decode.tokens, model.hidden, element_bytes=model.activation_bytes).times(model.layers)
    ]


def _logits(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    rows, size = prefill.sampled_rows + decode.sampled_rows, model.activation_bytes
    if not model.last:
        return []
    return [logits(rows, model.hidden, model.vocab, activation_bytes=size, weight_bytes=size)]


def _sampling(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    return [sampling(prefill.sampled_rows + decode.sampled_rows, model.vocab)] if model.last else []


def _embedding(model: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> list[Cost]:
    if not model.first:
        return []
    return [embedding(prefill.tokens + decode.tokens, model.hidden, element_bytes=model.activation_bytes)]


_Maker = Callable[[ModelShape, PhaseLoad, PhaseLoad], list[Cost]]
_CATEGORIES: dict[str, _Maker] = {
    "gemm": _gemm,
    "attention": _attention,
    "kv_cache": _kv_cache,
    "moe": _moe,
    "norm": _norm,
    "activation": _activation,
    "rope": _rope,
    "elementwise": _elementwise,
    "reduce": _elementwise,
    "quantize": _elementwise,
    "logits": _logits,
    "sampling": _sampling,
    "embedding": _embedding,
}
MODELLED: frozenset[str] = frozenset(_CATEGORIES)
