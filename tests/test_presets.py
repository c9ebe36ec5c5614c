"""Presets: as many weights as their publishers say, windows and caches as their papers say, and nothing half-made."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from analyzers.costs.shape import model_shape
from analyzers.costs.weights import weight_counts
from analyzers.presets import preset, preset_names

# Billions of weights: all, and those that one token is computed with (None: all). As counted on the model's page of the
# hub, or as its publisher names them; of gemma-3 the text model. Of active ones, publishers leave out the embedding, or the
# head as well, or neither: what they say has to lie between.
PUBLISHED: dict[str, tuple[float, float | None]] = {
    "llama-160m": (0.162, None), "llama-2-7b": (6.74, None), "llama-13b": (13.02, None), "llama-2-13b": (13.02, None),
    "llama-3.1-8b": (8.03, None), "llama-3.1-70b": (70.6, None), "llama-3.3-70b": (70.6, None),
    "llama-3.1-405b": (405.9, None), "llama-3.2-1b": (1.236, None), "llama-3.2-3b": (3.213, None),
    "qwen2.5-0.5b": (0.494, None), "qwen2.5-1.5b": (1.544, None), "qwen2.5-3b": (3.086, None),
    "qwen2.5-7b": (7.616, None), "qwen2.5-14b": (14.77, None), "qwen2.5-32b": (32.76, None), "qwen2.5-72b": (72.71, None),
    "qwen3-0.6b": (0.596, None), "qwen3-1.7b": (1.72, None), "qwen3-4b": (4.02, None), "qwen3-8b": (8.19, None),
    "qwen3-14b": (14.77, None), "qwen3-32b": (32.76, None), "qwen3-30b-a3b": (30.53, 3.3),
    "qwen3-235b-a22b": (235.1, 22.0), "gpt-oss-20b": (20.91, 3.61), "gpt-oss-120b": (116.83, 5.13),
    "deepseek-v3": (671.0, 37.0), "deepseek-r1": (671.0, 37.0), "deepseek-v2-lite": (15.7, 2.4), "kimi-k2": (1026, 32.0),
    "mistral-7b": (7.248, None), "mistral-small-24b": (23.57, None), "mistral-large": (122.6, None),
    "mixtral-8x7b": (46.7, 12.9), "mixtral-8x22b": (140.6, 39.0), "gemma-2-2b": (2.614, None), "gemma-2-9b": (9.242, None),
    "gemma-2-27b": (27.23, None), "gemma-3-1b": (1.0, None), "gemma-3-4b": (3.88, None), "gemma-3-12b": (11.77, None),
    "gemma-3-27b": (27.01, None), "phi-4": (14.66, None), "glm-4.5": (355, 32.0), "glm-4.5-air": (106, 12.0),
}  # fmt: skip


def test_every_preset_is_checked() -> None:
    assert set(preset_names()) == {"tiny", *PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_as_published(name: str) -> None:
    config = preset(name)
    assert config is not None
    shape = model_shape(config)
    counts = weight_counts(shape, tied=bool(config["tie_word_embeddings"]))
    total, active = PUBLISHED[name]
    assert counts.total / 1e9 == pytest.approx(total, rel=0.01)
    if active is None:
        assert counts.active == counts.total
    else:
        least = counts.active - counts.embedding - counts.head
        assert 0.98 * least <= active * 1e9 <= 1.01 * counts.active


@pytest.mark.parametrize(("name", "windows"), [
    ("gpt-oss-120b", {128: 18, None: 18}), ("gemma-2-9b", {4096: 21, None: 21}), ("gemma-3-27b", {1024: 52, None: 10}),
    ("gemma-3-1b", {512: 22, None: 4}), ("mistral-7b", {None: 32}), ("mixtral-8x7b", {None: 32}), ("qwen2.5-7b", {None: 28}),
    ("phi-4", {None: 40}),
])  # fmt: skip
def test_sliding_windows(name: str, windows: dict[int | None, int]) -> None:
    assert model_shape(preset(name) or {}).window_counts == windows


def test_caches_of_latent_attention_hold_the_latent_alone() -> None:
    for name in ("deepseek-v3", "deepseek-r1", "kimi-k2", "deepseek-v2-lite"):
        shape = model_shape(preset(name) or {})
        assert (shape.kv_width, shape.heads_q) == (576, {"kimi-k2": 64, "deepseek-v2-lite": 16}.get(name, 128))
    lite = model_shape(preset("deepseek-v2-lite") or {})
    assert lite.latent is not None and lite.latent.q_rank == 0
    assert lite.moe is not None and (lite.moe.shared_width, lite.dense_layers) == (2 * 1408, 1)


def test_a_preset_like_another_differs_in_what_it_lists() -> None:
    entries = tomllib.loads(resources.files("analyzers").joinpath("models.toml").read_text(encoding="utf-8"))
    likes = {name: entry["like"] for name, entry in entries.items() if "like" in entry}
    assert set(likes.values()) <= set(entries)
    for name, other in likes.items():
        assert preset(name) == {**(preset(other) or {}), **entries[name]["config"]}
    assert "quantization_config" in (preset("kimi-k2") or {}) and "sliding_window" not in (preset("mixtral-8x7b") or {})
    own, again = preset("deepseek-v3") or {}, preset("deepseek-v3") or {}
    own["hidden_size"] = 1
    assert again["hidden_size"] == 7168
