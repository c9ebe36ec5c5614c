"""The cost model: formulas against hand counts, shapes from configurations, refusals."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.costs.attention import PhaseLoad, attention, latent_attention, load_of_requests
from analyzers.costs.cost import Cost
from analyzers.costs.gemm import gemm
from analyzers.costs.logits import embedding, logits, sampling
from analyzers.costs.model import MODELLED, pieces, step_cost, step_roof_ns
from analyzers.costs.moe import expected_experts, experts_mlp
from analyzers.costs.norms import rms_norm
from analyzers.costs.roof import Peaks, roof_time_ns
from analyzers.costs.shape import MoeShape, model_shape
from traces.errors import UsageProblem

PRESETS = tomllib.loads((Path(__file__).resolve().parents[1] / "analyzers" / "models.toml").read_text())

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "torch_dtype": "bfloat16",
}  # fmt: skip


def one_request(q: int, k: int) -> PhaseLoad:
    return load_of_requests(np.array([q]), np.array([k - q]))


def test_gemm_counts_operations_and_bytes_with_their_own_sizes() -> None:
    cost = gemm(4, 8, 16, a_bytes=2, weight_bytes=0.5, out_bytes=4)
    assert cost == Cost(flops=2 * 4 * 8 * 16, bytes=4 * 8 * 2 + 8 * 16 * 0.5 + 4 * 16 * 4)


def test_gemm_bias_adds_one_operation_per_output() -> None:
    assert gemm(4, 8, 16, bias=True).flops - gemm(4, 8, 16).flops == 4 * 16


def test_weights_are_not_read_for_nobody() -> None:
    cost = gemm(np.array([0.0, 1.0]), 8, 16)
    assert np.asarray(cost.bytes).tolist() == [0.0, 8 * 2 + 8 * 16 * 2 + 16 * 2]


@pytest.mark.parametrize(("q", "k"), [(1, 1), (1, 1000), (7, 7), (5, 12)])
def test_attention_counts_every_visible_pair(q: int, k: int) -> None:
    pairs = sum(k - q + i + 1 for i in range(q))
    cost = attention(one_request(q, k), heads_q=4, heads_kv=2, dim_qk=8, dim_v=6)
    assert cost.flops == 2 * 4 * pairs * (8 + 6)
    assert cost.bytes == 4 * q * 14 * 2 + 2 * k * 14 * 2


@pytest.mark.parametrize(("q", "k"), [(1, 9), (7, 7), (5, 12), (888, 1000)])
def test_a_prompts_triangle_is_half_a_square(q: int, k: int) -> None:
    prompt = load_of_requests(np.array([q]), np.array([k - q]), prompts=True)
    assert prompt.pairs == q * k - q * q / 2
    assert attention(prompt, heads_q=4, heads_kv=2, dim_qk=8, dim_v=6).flops == 2 * 4 * (q * k - q * q / 2) * (8 + 6)
    assert one_request(q, k).pairs - prompt.pairs == q / 2, "exact counting has half a pair more per token"


@given(
    sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=5),
    window=st.integers(1, 700), prompts=st.booleans(),
)  # fmt: skip
def test_windows_are_counted_as_contexts_are(sizes: list[tuple[int, int]], window: int, prompts: bool) -> None:
    """A window beyond every context changes nothing; a shorter one is what each position sees, its own key half."""
    q, before = (np.array(part) for part in zip(*sizes, strict=True))
    load = load_of_requests(q, before, prompts=prompts, windows=(window, 700))
    assert load.windowed[700] == (load.kv_tokens, load.pairs)
    own = 0.5 if prompts else 0
    seen = sum(min(at + 1, window) - (own if at < window else 0) for n, b in sizes for at in range(b, b + n))
    assert load.windowed[window][1] == pytest.approx(seen)


@pytest.mark.parametrize(
    ("q", "k", "window"), [(1, 500, 128), (1, 100, 128), (200, 200, 128), (50, 300, 128), (5, 9, 4)]
)
def test_window_caps_each_query(q: int, k: int, window: int) -> None:
    positions = range(k - q, k)
    pairs = sum(min(p + 1, window) for p in positions)
    seen = len({j for p in positions for j in range(max(0, p + 1 - window), p + 1)})
    cost = attention(one_request(q, k), heads_q=1, heads_kv=1, dim_qk=1, dim_v=1, window=window)
    assert (cost.flops, cost.bytes) == (4 * pairs, 4 * q + 4 * seen)


def test_window_of_unequal_requests_needs_the_requests() -> None:
    """Sums alone cap the mean request; with the requests at hand the cap is exact."""
    q, before = np.array([1, 1]), np.array([9, 999])
    exact = load_of_requests(q, before, windows=(128,))
    assert exact.windowed[128] == (10 + 128, 10 + 128)
    cost = attention(exact, heads_q=1, heads_kv=1, dim_qk=1, dim_v=1, window=128)
    assert cost.flops == 4 * 138


def test_latent_attention_reads_the_latent_once_for_all_heads() -> None:
    cost = latent_attention(one_request(1, 100), heads=16, latent_rank=512, rope_dim=64)
    assert cost.flops == 2 * 16 * 100 * (576 + 512)
    assert cost.bytes == 16 * (576 + 512) * 2 + 100 * 576 * 2


def test_expected_experts_grow_towards_all() -> None:
    assert expected_experts(1, 32, 4) == pytest.approx(4)
    assert expected_experts(32, 32, 4) == pytest.approx(32 * (1 - (28 / 32) ** 32))
    assert expected_experts(10_000, 32, 4) == pytest.approx(32)


def test_experts_read_each_reached_expert_once() -> None:
    cost = experts_mlp(3, hidden=4, width=8, experts=16, top_k=2, weight_bytes=0.5, reached=5)
    assert cost.flops == 2 * 3 * 2 * 3 * 4 * 8
    assert cost.bytes == 5 * 3 * 4 * 8 * 0.5 + 6 * (2 * 4 + 3 * 8) * 2


def test_small_kernels() -> None:
    assert rms_norm(2, 10).bytes == (2 * 4 + 1) * 10 * 2
    assert logits(2, 8, 32).flops == 2 * 2 * 8 * 32
    assert sampling(2, 32).bytes == 2 * 2 * 32 * 4
    assert embedding(3, 8).bytes == 2 * 3 * 8 * 2


def test_roof_is_the_slower_of_computing_and_moving() -> None:
    peaks = Peaks(flops_per_s=1e9, bytes_per_s=1e9)
    assert roof_time_ns(Cost(flops=10, bytes=2), peaks) == 10
    assert roof_time_ns(Cost(flops=1, bytes=2), peaks) == 2
    assert peaks.ridge == 1
    assert np.isnan(Cost(flops=1, bytes=0).intensity)


def test_step_of_a_small_llama_by_hand() -> None:
    shape = model_shape(LLAMA)
    assert (shape.layers, shape.dim_qk, shape.kv_width, shape.heads_kv) == (3, 2, 8, 2)
    decode = load_of_requests(np.array([1, 1]), np.array([9, 19]))
    weights = 8 * (4 * 2 + 2 * 4) + 8 * 8 + 8 * 32 + 16 * 8
    assert step_cost(shape, "gemm", decode=decode).flops == 3 * 2 * 2 * weights
    assert step_cost(shape, "attention", decode=decode).flops == 3 * 2 * 4 * 30 * 4
    assert step_cost(shape, "kv_cache", decode=decode).bytes == 3 * 2 * 8 * 4
    assert step_cost(shape, "logits", decode=decode).flops == 2 * 2 * 8 * 32


def test_weights_are_shared_by_the_phases_and_attention_is_not() -> None:
    shape = model_shape(LLAMA)
    prefill, decode = one_request(64, 64), one_request(1, 500)
    for category in ("gemm", "logits"):
        both, first, second = (
            step_cost(shape, category, a, b).bytes
            for a, b in ((prefill, decode), (prefill, PhaseLoad()), (PhaseLoad(), decode))
        )
        assert both < first + second
    parts = [step_cost(shape, "attention", a, b).flops for a, b in ((prefill, PhaseLoad()), (PhaseLoad(), decode))]
    assert step_cost(shape, "attention", prefill, decode).flops == sum(parts)


@pytest.mark.parametrize("category", sorted(MODELLED))
def test_arrays_and_numbers_agree(category: str) -> None:
    shape = model_shape(PRESETS["gpt-oss-20b"]["config"])
    loads = [
        (one_request(40, 300), one_request(1, 500)),
        (PhaseLoad(), one_request(1, 90)),
        (one_request(9, 9), PhaseLoad()),
    ]

    def column(side: int, name: str) -> np.ndarray:
        return np.array([float(getattr(pair[side], name)) for pair in loads])

    names = ("reqs", "tokens", "kv_tokens", "qq", "qk", "sampled_rows")
    prefill, decode = (PhaseLoad(**{name: column(side, name) for name in names}) for side in (0, 1))
    peaks = Peaks(flops_per_s=1e12, bytes_per_s=1e11)
    together = np.asarray(step_roof_ns(shape, category, peaks, prefill, decode))
    alone = [float(step_roof_ns(shape, category, peaks, a, b)) for a, b in loads]
    assert together.tolist() == pytest.approx(alone)


def test_gpt_oss_agrees_with_the_sample_trace() -> None:
    """What another tool computed from the operator shapes of `gpu-traces/vllm_decode_full`, per layer."""
    shape = model_shape(PRESETS["gpt-oss-20b"]["config"])
    decode = PhaseLoad(reqs=32, tokens=32, kv_tokens=55_086, qq=32, qk=55_086, sampled_rows=32)
    qkv = pieces(shape, "gemm", decode=decode)[0]
    assert (qkv.flops, qkv.bytes) == (24 * 943_882_240, 24 * 30_013_440)
    full = pieces(shape, "attention", decode=decode)[-1]
    assert (shape.window_counts[None], full.flops) == (12, 12 * 902_529_024)
    cache = 8 * 55_086 * 128 * 2
    assert full.bytes == 12 * (cache + 64 * 32 * 128 * 2)


def active_parameters(preset: str) -> float:
    """Weights one token uses, from the operations of the weight products."""
    shape = model_shape(PRESETS[preset]["config"])
    token = one_request(1, 1)
    return sum(float(step_cost(shape, c, decode=token).flops) for c in ("gemm", "moe", "logits")) / 2


@pytest.mark.parametrize(
    ("preset", "billions"),
    # published sizes less the embedding table; active parameters for the sparse ones
    [("llama-2-7b", 6.61), ("llama-3.1-8b", 7.50), ("llama-3.1-70b", 69.5), ("qwen3-8b", 7.57), ("qwen3-30b-a3b", 3.04),
     ("gpt-oss-20b", 3.0), ("deepseek-v3", 37.0)],
)  # fmt: skip
def test_presets_have_their_published_sizes(preset: str, billions: float) -> None:
    assert active_parameters(preset) / 1e9 == pytest.approx(billions, rel=0.03 if preset != "gpt-oss-20b" else 0.25)


def test_windows_alternate_where_the_model_says_so() -> None:
    shape = model_shape(PRESETS["gpt-oss-20b"]["config"])
    assert shape.windows[:4] == (128, None, 128, None)
    implied = {**PRESETS["gpt-oss-20b"]["config"], "layer_types": None}
    assert model_shape(implied).windows == shape.windows
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}
    assert model_shape(qwen).windows == (None,) * 3
    assert model_shape({**qwen, "use_sliding_window": True, "max_window_layers": 1}).windows == (None, 64, 64)
    assert model_shape({**LLAMA, "model_type": "mistral", "sliding_window": 64}).windows == (64,) * 3
    assert model_shape({**LLAMA, "sliding_window": 64}).windows == (None,) * 3


def test_sparse_layers_and_shared_experts() -> None:
    shape = model_shape(PRESETS["deepseek-v3"]["config"])
    assert shape.moe == MoeShape(experts=256, top_k=8, width=2048, shared_width=2048)
    assert (sum(shape.moe_layers), shape.dense_layers) == (58, 3)
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert model_shape(mixtral).moe == MoeShape(experts=8, top_k=2, width=16)


@pytest.mark.parametrize(
    ("quantization", "linear", "expert"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2, 1 + 4 / 128**2),
        ({"quant_method": "mxfp4"}, 2, 0.5 + 1 / 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128, 0.5 + 2.5 / 128),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 1, 1),
    ],
)
def test_quantized_weights_include_their_scales(quantization: dict[str, Any], linear: float, expert: float) -> None:
    shape = model_shape({**LLAMA, "quantization_config": quantization})
    assert (shape.linear_bytes, shape.expert_bytes) == (linear, expert)


def test_cache_type_and_model_type_are_apart() -> None:
    shape = model_shape(LLAMA, dtype="float32", kv_dtype="fp8")
    assert (shape.activation_bytes, shape.kv_bytes, shape.linear_bytes) == (4, 1, 4)


def test_ranks_share_heads_widths_and_vocabulary() -> None:
    shape = model_shape(LLAMA).divided(4)
    assert (shape.heads_q, shape.heads_kv, shape.intermediate, shape.vocab, shape.hidden) == (1, 1, 4, 8, 8)
    with pytest.raises(UsageProblem):
        model_shape(LLAMA).divided(3)


@pytest.mark.parametrize(
    "config",
    [
        {**LLAMA, "model_type": "a_new_one"},
        {k: v for k, v in LLAMA.items() if k != "model_type"},
        {k: v for k, v in LLAMA.items() if k != "hidden_size"},
        {k: v for k, v in LLAMA.items() if k != "torch_dtype"},
        {**LLAMA, "quantization_config": {"quant_method": "something"}},
        {**LLAMA, "hidden_size": "wide"},
    ],
)
def test_unknown_is_refused_with_a_hint(config: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem) as caught:
        model_shape(config)
    assert caught.value.hint


def test_category_without_a_model_is_refused() -> None:
    with pytest.raises(UsageProblem):
        pieces(model_shape(LLAMA), "comm")
