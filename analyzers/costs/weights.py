"""How many weights a model has, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.costs.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCounts:
    """Weights by how they are stored and read. On several ranks: of one rank."""

    linear: float  # of dense layers: projections, shared experts, routers
    experts: float  # of routed experts
    active_experts: float  # of these, what one token takes
    embedding: float
    head: float  # 0 where it is the embedding's
    norms: float  # and biases

    @property
    def total(self) -> float:
        """All weights."""
        return self.linear + self.experts + self.embedding + self.head + self.norms

    @property
    def active(self) -> float:
        """The weights that one token is computed with, embedding included."""
        return self.total - self.experts + self.active_experts

    def bytes(self, model: ModelShape) -> float:
        """Stored size: quantization changes the linear layers and the experts."""
        plain = (self.embedding + self.head + self.norms) * model.activation_bytes
        return self.linear * model.linear_bytes + self.experts * model.expert_bytes + plain


def weight_counts(model: ModelShape, *, tied: bool) -> WeightCounts:
    """Of a model, or of one rank's share of it; `tied`: the head is the embedding's matrix.

    Of pipeline stages the first has the embedding and the last the head, where it is tied a copy of the embedding.
    """
    matrices = 3 if model.gated else 2
    sparse = sum(model.moe_layers)
    linear = model.layers * _attention(model) + model.dense_layers * matrices * model.hidden * model.intermediate
    experts = active = 0.0
    if model.moe is not None:
        one = matrices * model.hidden * model.moe.width
        linear += sparse * model.hidden * (model.moe.experts + matrices * model.moe.shared_width)
        experts = sparse * model.moe.experts / model.moe.ranks * one
        active = sparse * model.moe.top_k / model.moe.ranks * one
    table = float(model.vocab * model.hidden)
    return WeightCounts(
        linear=linear, experts=experts, active_experts=active, norms=_norms_and_biases(model),
        embedding=table if model.first or (tied and model.last) else 0.0,
        head=table if model.last and not tied else 0.0,
    )  # fmt: skip


def _attention(model: ModelShape) -> float:
    """Projections of one layer."""
    out = model.heads_q * model.dim_v * model.hidden
    latent = model.latent
    if latent is None:
        width = model.heads_q * model.dim_qk + model.heads_kv * (model.dim_qk + model.dim_v)
        return float(model.hidden * width + out)
    queries = model.heads_q * model.dim_qk
    down = model.hidden * (latent.kv_rank + latent.rope_dim + (latent.q_rank or queries))
    up = latent.q_rank * queries + latent.kv_rank * model.heads_q * (latent.nope_dim + model.dim_v)
    return float(down + up + out)


def _norms_and_biases(model: ModelShape) -> float:
    per_norm = model.hidden * (2 if model.layer_norm else 1)
    layer: float = model.norms_per_layer * per_norm + (2 * model.dim_qk if model.qk_norm else 0)
    if model.latent is not None:
        layer += model.latent.q_rank + model.latent.kv_rank
    if model.qkv_bias:
        layer += model.heads_q * model.dim_qk + model.heads_kv * (model.dim_qk + model.dim_v)
    if model.out_bias:
        layer += model.hidden
    if model.moe is not None and model.moe.bias:
        gates = 2 if model.gated else 1
        per_expert = gates * model.moe.width + model.hidden
        layer += model.moe.experts * (per_expert / model.moe.ranks + 1)
    return float(model.layers * layer + per_norm * model.last)
