"""Predictions: the textbook's figures one by one, our own beside them, and what must hold for any model and device."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from analyzers.commands.predict import predict as predict_command
from analyzers.costs.attention import PhaseLoad, load_of_requests
from analyzers.costs.model import step_cost
from analyzers.costs.shape import model_shape
from analyzers.costs.textbook import round_parameters
from analyzers.costs.weights import weight_counts
from analyzers.prediction import Prediction
from analyzers.presets import model_config
from analyzers.report.predict_text import predict_lines
from analyzers.scenario import Expectation, asked, expect, parse_count
from traces.errors import UsageProblem

HALF_PERCENT = 0.005


def expected(model: str = "llama-2-7b", gpu: str | None = "A100-40GB", **words: Any) -> Expectation:
    return expect(*asked({"model": model, "gpu": gpu, **words}))


def textbook(model: str = "llama-2-7b", gpu: str = "A100-40GB", **words: Any) -> Prediction:
    return expected(model, gpu, convention="textbook", **words).prediction


def near(value: float) -> Any:
    return pytest.approx(value, rel=HALF_PERCENT)


# The figures of teaching material: 32 layers, d 4096, 16 bit, on 312 TFLOP/s and 1.6 TB/s.


def test_textbook_ridges() -> None:
    assert textbook().ridge == near(195.0)
    assert textbook(gpu="H100-SXM").ridge == near(295.5)
    assert textbook(gpu="H100-SXM").peak_flops == 990e12


def test_textbook_prefill_of_3000_tokens() -> None:
    prefill = textbook(prompt=3000).prefill
    assert prefill.flops == near(43.37e12)
    assert prefill.floor_s == near(0.139)
    assert prefill.intensity == near(2785)
    assert prefill.side == "compute"


def test_textbook_prefill_of_100_tokens_is_on_the_memory_side() -> None:
    # 100 FLOP/byte is what its products with weights have: one per token. The step has less, for 7e9 weights are read
    # and 6.44e9 computed with.
    prefill = textbook(prompt=100).prefill
    assert prefill.weight_intensity == near(100)
    assert prefill.intensity == near(92.07)
    assert prefill.side == "memory"


def test_textbook_decode_at_3000_tokens_of_context() -> None:
    found = textbook(prompt=3000)
    assert found.decode.flops == near(14.46e9)
    assert found.decode.compute_s == pytest.approx(46e-6, rel=0.01)  # the source rounds 46.3
    assert found.decode.compute_s == near(46.34e-6)
    assert found.memory.weights_bytes == near(14e9)
    assert found.memory.kv_bytes == near(1.573e9)
    assert found.memory.total_bytes == near(15.57e9)
    assert found.decode.bytes == near(15.57e9)
    assert found.decode.floor_s == near(9.73e-3)
    assert found.decode.weight_intensity == near(1.0)
    assert found.decode.intensity == pytest.approx(1.0, abs=0.08)
    assert found.decode.side == "memory"


def test_textbook_cache_per_token_and_as_it_grows() -> None:
    found = textbook(prompt=3000)
    assert found.kv_bytes_per_token == near(0.524e6)
    assert [(item.more, item.kv_bytes) for item in found.kv_growth] == [
        (1, near(3_001 * 524_288)), (100, near(1.625e9)), (2_000, near(2.621e9)),
    ]  # fmt: skip


def test_textbook_70b_on_an_h100() -> None:
    memory = textbook("llama-3.1-70b", "H100-SXM").memory
    assert memory.weights_bytes == near(140e9)
    assert memory.weights_read_s == near(41.8e-3)
    assert memory.fits is False
    assert memory.headroom_bytes is not None and memory.headroom_bytes < 0


@pytest.mark.parametrize(("model", "gigabytes"), [("llama-2-7b", 52.4), ("llama-3.1-8b", 13.1)])
def test_textbook_cache_at_100k_tokens(model: str, gigabytes: float) -> None:
    assert textbook(model, "H100-SXM", context=100_000).memory.kv_bytes == near(gigabytes * 1e9)


def test_textbook_request_and_training_of_8b() -> None:
    rules = textbook("llama-3.1-8b", "H100-SXM", prompt=512, output=128, train_tokens="160B").rules
    assert rules.request_flops == near(1.024e13)
    assert rules.training_flops == near(7.68e21)
    assert rules.training_device_days == near(89.8)


def test_textbook_turns_at_given_rates() -> None:
    turns = textbook(turns=10, per_turn=200, prefill_rate=1000.0, decode_rate=100.0, output=100).turns
    assert turns[0].ttft_s == near(0.2)
    assert turns[9].ttft_s == near(2.0)
    assert [turn.ttft_cached_s for turn in turns] == [near(0.2)] * 10
    assert [turn.prefill_share for turn in turns] == [near(0.2 * t / (0.2 * t + 1.0)) for t in range(1, 11)]
    assert [turn.prefill_share_cached for turn in turns] == [near(1 / 6)] * 10


def test_textbook_decode_cannot_reach_the_ridge_at_3000_tokens_of_context() -> None:
    ridge = textbook(prompt=3000).ridge_batch
    assert ridge.batch is None
    assert ridge.ceiling == near((6 * 4096 + 3000) / 3000)  # 9.19: per token 24·d² + 4·S·d, per byte of cache 4·S·d
    assert ridge.ceiling == pytest.approx(9, abs=0.25)


def test_textbook_decode_reaches_the_ridge_at_a_short_context() -> None:
    found = textbook(prompt=32)
    batch = found.ridge_batch.batch
    assert batch is not None

    def sides(size: int) -> tuple[float, float]:
        flops = size * 32 * (24 * 4096**2 + 4 * 32 * 4096)
        return flops / 312e12, (14e9 + size * 32 * 524_288) / 1.6e12

    assert sides(batch)[0] >= sides(batch)[1] and sides(batch - 1)[0] < sides(batch - 1)[1]
    assert found.ridge_batch.kv_bytes == near(batch * 32 * 524_288)


def test_the_users_rates_win_over_the_textbooks() -> None:
    found = expected(convention="textbook", peak_flops="300T", bandwidth="1.5TB/s")
    assert found.prediction.ridge == near(200.0)
    assert found.peak_source == "user"


# Our own convention


def test_default_prefill_is_causal_has_a_head_and_the_real_widths() -> None:
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    pairs = 3000 * 3001 / 2
    flops = expected(prompt=3000).prediction.prefill.flops
    gemms = 2 * 32 * layer * 3000 + 2 * 4096 * 32000 + 32 * 4 * pairs * 4096
    assert flops == pytest.approx(gemms, rel=0.002)  # the rest: norms, activations, positions
    assert flops > gemms


@pytest.mark.parametrize(
    ("model", "billions", "active", "gigabytes"),
    [
        ("llama-2-7b", 6.738, 6.738, 13.48), ("llama-3.1-8b", 8.030, 8.030, 16.06), ("qwen3-8b", 8.191, 8.191, 16.38),
        ("llama-3.1-70b", 70.55, 70.55, 141.1), ("qwen3-30b-a3b", 30.53, 3.35, 61.06),
        ("gpt-oss-20b", 20.91, 4.19, 13.76), ("deepseek-v3", 671.0, 37.55, 673.0),
    ],
)  # fmt: skip
def test_weights_as_published(model: str, billions: float, active: float, gigabytes: float) -> None:
    config = model_config(model)
    shape = model_shape(config)
    counts = weight_counts(shape, tied=bool(config.get("tie_word_embeddings")))
    assert counts.total == pytest.approx(billions * 1e9, rel=0.001)
    assert counts.active == pytest.approx(active * 1e9, rel=0.002)
    assert counts.bytes(shape) == pytest.approx(gigabytes * 1e9, rel=0.001)


def test_steps_equal_the_cost_model_of_recorded_steps() -> None:
    """One model for both: what `predict` says of a step is what an analysis of that step says."""
    shape = model_shape(model_config("gpt-oss-20b"))
    found = expected("gpt-oss-20b", "MI300X", prompt=700, context=500, batch=4, beside=(300,)).prediction
    decode = load_of_requests(np.array([1] * 4), np.array([499] * 4), windows=(128,))
    chunk = load_of_requests(np.array([300]), np.array([0]), prompts=True, windows=(128,))
    categories = (
        "gemm",
        "moe",
        "attention",
        "kv_cache",
        "norm",
        "activation",
        "rope",
        "logits",
        "sampling",
        "embedding",
    )

    def total(prefill: PhaseLoad) -> tuple[float, float]:
        costs = [step_cost(shape, category, prefill, decode) for category in categories]
        return sum(float(cost.flops) for cost in costs), sum(float(cost.bytes) for cost in costs)

    assert (found.decode.flops, found.decode.bytes) == pytest.approx(total(PhaseLoad()))
    assert (found.beside[0].flops, found.beside[0].bytes) == pytest.approx(total(chunk))


def test_a_window_caps_cache_and_reads() -> None:
    short = expected("gpt-oss-20b", "MI300X", context=128).prediction
    long = expected("gpt-oss-20b", "MI300X", context=1128).prediction
    grown = 12 * 1000 * 8 * 128 * 2  # the twelve layers without a window, 8 heads of 64 + 64
    assert long.memory.kv_bytes - short.memory.kv_bytes == grown
    assert long.decode.bytes - short.decode.bytes == pytest.approx(grown)


def test_quantized_weights_are_read_faster_and_compute_in_their_type() -> None:
    plain, fp8 = expected(gpu="H100-SXM"), expected(gpu="H100-SXM", quant="fp8")
    assert (plain.weights_dtype, fp8.weights_dtype) == ("fp16", "fp8")
    assert fp8.prediction.peak_flops == pytest.approx(1978.9e12)
    assert fp8.prediction.decode.floor_s < 0.6 * plain.prediction.decode.floor_s
    assert fp8.prediction.decode.compute_s < plain.prediction.decode.compute_s


def test_a_type_without_units_computes_in_the_activations_type_and_says_so() -> None:
    found = expected(gpu="A100-40GB", quant="fp8")
    assert found.weights_dtype == "fp16"
    assert found.prediction.peak_flops == 312e12
    assert any("compute in fp16" in note for note in found.notes)


def test_tensor_parallel_divides_and_communicates() -> None:
    one, two = (expected("llama-3.1-70b", "H100-SXM", prompt=1000, tensor_parallel=n).prediction for n in (1, 2))
    assert two.memory.weights_bytes == pytest.approx(one.memory.weights_bytes / 2, rel=0.001)
    assert two.kv_bytes_per_token == one.kv_bytes_per_token / 2
    assert (one.memory.fits, two.memory.fits) == (False, True)
    assert (one.prefill.comm_s, two.prefill.comm_s) == (0.0, pytest.approx(80 * 2 * 1000 * 8192 * 2 / 450e9))
    assert two.prefill.floor_s == max(two.prefill.compute_s, two.prefill.memory_s) + two.prefill.comm_s


def test_a_step_with_prefill_beside_decode_costs_more_than_decode_and_less_than_both() -> None:
    found = expected(batch=16, prompt=1000, beside=(256, 2048)).prediction
    for item in found.beside:
        assert 0 < item.added_s < item.step_s
        assert item.saved_s > 0  # weights are read once
        assert item.step_s == pytest.approx(found.decode.floor_s + item.added_s)


def test_capacity_and_fit_agree() -> None:
    found = expected(prompt=1000, batch=4).prediction
    memory = found.memory
    assert memory.fits and memory.usable_bytes == pytest.approx(0.9 * 40 * 2**30)
    assert memory.total_bytes + memory.headroom_bytes == pytest.approx(memory.usable_bytes)
    fitting = [item.batch for item in found.batches if item.fits]
    assert max(fitting) <= memory.kv_capacity_requests < min(i.batch for i in found.batches if not i.fits)


def test_prices_follow_time() -> None:
    found = expected(price=3.6, batch=8, tensor_parallel=2).prediction
    per_second = 3.6 * 2 / 3600
    assert found.prices.decode_per_million == pytest.approx(per_second * found.decode.floor_s / 8 * 1e6)
    assert found.prices.prefill_per_million == pytest.approx(per_second * found.prefill.floor_s / 2048 * 1e6)
    row = next(item for item in found.batches if item.batch == 8)
    assert row.price_per_million == pytest.approx(found.prices.decode_per_million)


def test_a_conversation_with_a_prefix_cache_pays_for_new_tokens_only() -> None:
    turns = expected(turns=4, per_turn=500).prediction.turns
    assert [turn.prompt_tokens for turn in turns] == [500, 1000, 1500, 2000]
    assert turns[0].ttft_s == turns[0].ttft_cached_s
    assert all(late.ttft_s > early.ttft_s for early, late in itertools.pairwise(turns))
    assert all(turn.ttft_cached_s < turn.ttft_s for turn in turns[1:])
    assert all(turn.prefill_share_cached <= turn.prefill_share for turn in turns)


def test_uncertain_cells_are_named() -> None:
    assert any("bandwidth of B200" in note for note in expected("llama-3.1-8b", "B200").notes)
    assert expected("llama-3.1-8b", "H100-SXM").notes == ()


def test_without_a_device_rates_are_enough_and_fit_is_unknown() -> None:
    found = expected(gpu=None, peak_flops="1T", bandwidth="50GB/s")
    assert found.device is None
    assert (found.prediction.memory.fits, found.prediction.batches[0].fits) == (None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu": None}, "no device is given"),
        ({"gpu": None, "peak_flops": "1T"}, "no device is given"),
        ({"gpu": "V100-SXM2", "model": "llama-3.1-8b"}, "no matrix units for bf16"),
        ({"gpu": "H101"}, "unknown GPU H101"),
        ({"gpu": "H100"}, "may be one of several"),
        ({"quant": "int3"}, "unknown quantization int3"),
        ({"model": "no-such-model"}, "unknown model no-such-model"),
        ({"tensor_parallel": 7}, "cannot be divided over 7"),
        ({"train_tokens": "many"}, "--train-tokens many is not a number"),
    ],
)
def test_what_is_not_known_is_an_error_with_a_hint(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageProblem, match=message) as caught:
        expected(**words)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "count"), [("llama-2-7b", 7e9), ("qwen3-30b-a3b", 30e9), ("llama-160m", 160e6), ("deepseek-v3", None)]
)
def test_round_sizes_from_names(name: str, count: float | None) -> None:
    assert round_parameters(name) == count


def test_counts_with_units() -> None:
    assert [parse_count(text, "--x") for text in ("70B", "160e9", "2.5M", "12")] == [70e9, 160e9, 2.5e6, 12.0]


def test_command_prints_tables_and_json() -> None:
    words = ["--model", "llama-2-7b", "--gpu", "A100-40GB", "--prompt", "3000", "--convention", "textbook"]
    text = CliRunner().invoke(predict_command, words)
    assert text.exit_code == 0
    for figure in ("43.37 TFLOP", "139.02 ms", "14.46 GFLOP", "46.3 µs", "9.73 ms", "ridge 195.0", "never reaches"):
        assert figure in text.output
    answer = CliRunner().invoke(predict_command, [*words, "--json"])
    decoded = json.loads(answer.output)
    assert decoded["prediction"]["prefill"]["floor_s"] == near(0.139)
    assert decoded["question"]["prompt"] == 3000
    assert decoded == {"version": 1, **json.loads(json.dumps(asdict(expected(prompt=3000, convention="textbook"))))}


def test_every_section_is_printed() -> None:
    found = expected("deepseek-v3", "B200", tensor_parallel=8, turns=2, price=2.0, train_tokens="1T", quant="nvfp4")
    text = "\n".join(predict_lines(found))
    for words in (
        "× 8 (tensor parallel", "fp4 weight products", "One step", "Memory of one device", "Decode against batch",
        "Prefill tokens added", "A conversation", "37.55 billion active", "device-days", "Per million tokens",
        "note: experts: uniform routing",
    ):  # fmt: skip
        assert words in text


def test_docs_show_both_conventions() -> None:
    """The table of docs/predict.md holds what the calls print."""
    text = (Path(__file__).resolve().parents[1] / "docs" / "predict.md").read_text(encoding="utf-8")
    book, own = textbook(prompt=3000), expected(prompt=3000).prediction
    for found in (book, own):
        assert f"{found.prefill.flops / 1e12:.2f} TFLOP" in text
        assert f"{found.prefill.floor_s * 1e3:.1f} ms" in text
        assert f"{found.decode.flops / 1e9:.2f} GFLOP" in text
        assert f"{found.decode.floor_s * 1e3:.2f} ms" in text
        assert f"{found.prefill.intensity:,.0f}" in text
