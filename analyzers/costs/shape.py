"""What a cost model needs to know of a model: read from its Hugging Face configuration, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from analyzers.costs.precision import dtype_bytes, kv_dtype_bytes, weight_bytes
from traces.errors import UsageProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """Routed experts of a layer, and those that every token takes."""

    experts: int
    top_k: int
    width: int  # of one routed expert
    shared_width: int = 0  # of all shared experts together
    bias: bool = False
    ranks: int = 1  # that the routed experts are divided over, whole ones each
    replicas: int = 1  # whose tokens meet at these ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Multi-head latent attention: ranks of the compressed queries (0: not compressed) and of the cache."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Widths, counts and element sizes. On several ranks: what one rank holds (see `divided`, `parallel.stages_of`)."""

    architecture: str
    hidden: int
    vocab: int
    heads_q: int
    heads_kv: int
    dim_qk: int
    dim_v: int
    intermediate: int
    windows: tuple[int | None, ...]  # per layer; None: sees the whole context
    moe_layers: tuple[bool, ...]  # per layer
    first: bool = True  # of the pipeline's stages: has the embedding
    last: bool = True  # has the final norm, the head and the sampler
    moe: MoeShape | None = None
    latent: LatentShape | None = None
    gated: bool = True
    rotary_dim: int = 0  # per head; 0: positions are not rotated
    layer_norm: bool = False  # mean and variance; else root mean square
    norms_per_layer: int = 2
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation_bytes: float
    kv_bytes: float
    linear_bytes: float  # per weight, scales included
    expert_bytes: float

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def dense_layers(self) -> int:
        return self.layers - sum(self.moe_layers)

    @property
    def kv_width(self) -> int:
        """Elements that one token adds to one layer's cache."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return self.heads_kv * (self.dim_qk + self.dim_v)

    @property
    def window_counts(self) -> dict[int | None, int]:
        """How many layers have which window."""
        return {window: self.windows.count(window) for window in dict.fromkeys(self.windows)}

    def divided(self, tensor_parallel: int) -> ModelShape:
        """One rank's share: heads, widths and vocabulary divided; key heads repeated where there are too few."""
        if tensor_parallel < 1 or self.heads_q % tensor_parallel:
            raise UsageProblem(
                f"{self.heads_q} attention heads cannot be divided over {tensor_parallel} ranks",
                hint="give the run's tensor-parallel size",
            )
        moe = self.moe and replace(
            self.moe,
            width=_share(self.moe.width, tensor_parallel),
            shared_width=_share(self.moe.shared_width, tensor_parallel),
        )
        return replace(
            self, heads_q=self.heads_q // tensor_parallel, heads_kv=_share(self.heads_kv, tensor_parallel), moe=moe,
            intermediate=_share(self.intermediate, tensor_parallel), vocab=_share(self.vocab, tensor_parallel),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How a family of models differs from the common transformer."""

    gated: bool = True
    rotary: bool = True
    layer_norm: bool = False
    norms_per_layer: int = 2
    qk_norm: bool | None = False  # None: `use_qk_norm` of the configuration
    qkv_bias: bool | None = None  # None: `attention_bias` of the configuration
    out_bias: bool | None = None
    mlp_bias: bool | None = None  # None: `mlp_bias` of the configuration
    windows: str = "none"  # 'none' | 'all' | 'qwen' | 'alternate' | 'every_sixth_full' where `layer_types` is absent
    latent: bool = False


_LLAMA = _Family()
_FAMILIES: dict[str, _Family] = {
    "llama": _LLAMA,
    "mistral": _Family(windows="all"),
    "mixtral": _Family(windows="all"),
    "qwen2": _Family(qkv_bias=True, out_bias=False, windows="qwen"),
    "qwen2_moe": _Family(qkv_bias=True, out_bias=False, windows="qwen"),
    "qwen3": _Family(qk_norm=True, windows="qwen"),
    "qwen3_moe": _Family(qk_norm=True, windows="qwen"),
    "phi3": _Family(windows="all"),
    "olmo2": _Family(qk_norm=True),
    "gemma2": _Family(norms_per_layer=4, windows="alternate"),
    "gemma3_text": _Family(norms_per_layer=4, qk_norm=True, windows="every_sixth_full"),
    "gpt_oss": _Family(windows="alternate"),
    "deepseek_v2": _Family(latent=True),
    "deepseek_v3": _Family(latent=True),
    "kimi_k2": _Family(latent=True),
    "glm4_moe": _Family(qk_norm=None, out_bias=False),
    "gpt2": _Family(gated=False, rotary=False, layer_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True),
    "opt": _Family(gated=False, rotary=False, layer_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True),
}


def model_shape(config: Mapping[str, Any], *, dtype: str | None = None, kv_dtype: str | None = None) -> ModelShape:
    """The shape of the model with this `config.json`; `dtype` and `kv_dtype` ('auto': as dtype) override it.

    Raises UsageProblem for an unknown `model_type`, a missing size or an unknown quantization: nothing is assumed.
    """
    try:
        return _shape(config, dtype, kv_dtype)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise UsageProblem(
            f"the model configuration holds a value of a wrong kind: {str(error)[:200]}",
            hint="give the model's own config.json",
        ) from error


def _shape(config: Mapping[str, Any], dtype: str | None, kv_dtype: str | None) -> ModelShape:
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" in text:
        config = {**config, **text}
    model_type = str(config.get("model_type", "")) or "(none)"
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UsageProblem(
            f"the cost model does not know model_type {model_type!r}",
            hint=f"known: {', '.join(sorted(_FAMILIES))}; give a configuration of one of these with --model-config",
        )
    hidden = _size(config, "hidden_size", "n_embd")
    layers = _size(config, "num_hidden_layers", "n_layer")
    heads = _size(config, "num_attention_heads", "n_head")
    moe, moe_layers = _moe(config, layers)
    latent = _latent(config) if family.latent else None
    head_dim = _size(config, "head_dim") if config.get("head_dim") else hidden // heads
    bias = bool(config.get("attention_bias", False))
    linear, expert = weight_bytes(config, dtype)
    return ModelShape(
        architecture=model_type,
        hidden=hidden,
        vocab=_size(config, "vocab_size"),
        heads_q=heads,
        heads_kv=int(config.get("num_key_value_heads") or heads),
        dim_qk=latent.nope_dim + latent.rope_dim if latent else head_dim,
        dim_v=_size(config, "v_head_dim") if latent and config.get("v_head_dim") else head_dim,
        intermediate=_intermediate(config, hidden, model_type, dense=not all(moe_layers)),
        windows=_windows(config, family, layers),
        moe_layers=moe_layers,
        moe=moe,
        latent=latent,
        gated=family.gated,
        rotary_dim=_rotary_dim(config, family, latent, head_dim),
        layer_norm=family.layer_norm,
        norms_per_layer=family.norms_per_layer,
        qk_norm=bool(config.get("use_qk_norm", False)) if family.qk_norm is None else family.qk_norm,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        out_bias=bias if family.out_bias is None else family.out_bias,
        mlp_bias=bool(config.get("mlp_bias", False)) if family.mlp_bias is None else family.mlp_bias,
        activation_bytes=dtype_bytes(config, dtype),
        kv_bytes=kv_dtype_bytes(config, dtype, kv_dtype),
        linear_bytes=linear,
        expert_bytes=expert,
    )


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise UsageProblem(
        f"the model configuration lacks {' or '.join(names)}",
        hint="give the model's full config.json with --model-config",
    )


def _intermediate(config: Mapping[str, Any], hidden: int, model_type: str, *, dense: bool) -> int:
    if model_type == "gpt2":
        return int(config.get("n_inner") or 4 * hidden)
    if model_type == "opt":
        return _size(config, "ffn_dim")
    return _size(config, "intermediate_size") if dense else int(config.get("intermediate_size") or 0)


def _rotary_dim(config: Mapping[str, Any], family: _Family, latent: LatentShape | None, head_dim: int) -> int:
    if not family.rotary:
        return 0
    if latent is not None:
        return latent.rope_dim
    return int(head_dim * float(config.get("partial_rotary_factor") or 1))


def _moe(config: Mapping[str, Any], layers: int) -> tuple[MoeShape | None, tuple[bool, ...]]:
    """Routed experts and the layers that have them. Families name the same things differently."""
    experts = next(
        (int(config[key]) for key in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(key)), 0
    )
    if not experts:
        return None, (False,) * layers
    width = _size(config, "moe_intermediate_size", "intermediate_size")
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    shared += int(config.get("n_shared_experts") or 0) * width
    first = int(config.get("first_k_dense_replace") or 0)
    period = int(config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1)
    dense_only = set(config.get("mlp_only_layers") or ())
    deepseek = "n_routed_experts" in config
    sparse = tuple(
        i >= first and i not in dense_only and ((i % period == 0) if deepseek else ((i + 1) % period == 0))
        for i in range(layers)
    )
    moe = MoeShape(
        experts=experts,
        top_k=_size(config, "num_experts_per_tok", "experts_per_token"),
        width=width,
        shared_width=shared,
        bias=config.get("model_type") == "gpt_oss",
    )
    return moe, sparse


def _latent(config: Mapping[str, Any]) -> LatentShape:
    return LatentShape(
        q_rank=int(config.get("q_lora_rank") or 0),
        kv_rank=_size(config, "kv_lora_rank"),
        nope_dim=_size(config, "qk_nope_head_dim"),
        rope_dim=_size(config, "qk_rope_head_dim"),
    )


def _windows(config: Mapping[str, Any], family: _Family, layers: int) -> tuple[int | None, ...]:
    """Each layer's window. `layer_types` decides where it is given; older configurations imply a pattern."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or window <= 0:
        return (None,) * layers
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if family.windows == "all":
        return (window,) * layers
    if family.windows == "qwen":
        full = int(config.get("max_window_layers") or 0) if config.get("use_sliding_window") else layers
        return tuple(None if i < full else window for i in range(layers))
    period = {"alternate": 2, "every_sixth_full": int(config.get("sliding_window_pattern") or 6)}.get(family.windows)
    if period is None:
        return (None,) * layers
    return tuple(None if (i + 1) % period == 0 else window for i in range(layers))


def _share(width: int, ranks: int) -> int:
    return -(-width // ranks)
