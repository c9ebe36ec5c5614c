"""The split of mixed steps: sums, known truths, matched steps, and what happens with nothing to go by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.model import step_cost, step_roof_ns
from analyzers.costs.roof import Peaks
from analyzers.costs.shape import model_shape
from analyzers.shares import device_ns
from analyzers.split import Steps, learn, per_step, split

MODEL = model_shape(
    {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 4096,
     "num_attention_heads": 8, "torch_dtype": "bfloat16"}
)  # fmt: skip
PEAKS = Peaks(flops_per_s=4e11, bytes_per_s=2e10)
CATEGORIES = ("gemm", "attention", "logits", "elementwise")


def load(reqs: Any, tokens: Any, context: Any) -> PhaseLoad:
    """Per step, `reqs` requests of equal size: `tokens` new ones each after `context`."""
    reqs, tokens, context = (np.asarray(x, dtype=np.float64) for x in np.broadcast_arrays(reqs, tokens, context))
    k = tokens + context
    sums = {"tokens": reqs * tokens, "kv_tokens": reqs * k, "qq": reqs * tokens**2, "qk": reqs * tokens * k}
    return PhaseLoad(reqs=reqs, sampled_rows=reqs, **sums)


def nobody(n: int) -> PhaseLoad:
    return load(np.zeros(n), 0, 0)


def cost_ns(category: str, prefill: PhaseLoad, decode: PhaseLoad, *, overlap: bool) -> np.ndarray:
    """What the made-up device takes: fixed time, then moving and computing one after the other or at once."""
    present = (np.asarray(prefill.tokens + decode.tokens) > 0) * 50_000.0
    if overlap:
        return present + np.asarray(step_roof_ns(MODEL, category, PEAKS, prefill, decode))
    cost = step_cost(MODEL, category, prefill, decode)
    return present + np.asarray(cost.bytes / PEAKS.bytes_per_s + cost.flops / PEAKS.flops_per_s) * 1e9


def steps_of(prefill: PhaseLoad, decode: PhaseLoad, *, overlap: bool = False, noise: float = 0.0) -> Steps:
    random = np.random.default_rng(7)
    n = len(np.asarray(prefill.tokens))
    measured = {
        c: np.rint(cost_ns(c, prefill, decode, overlap=overlap) * random.normal(1, noise, n)).astype(np.int64)
        for c in CATEGORIES
    }
    return Steps(prefill=prefill, decode=decode, measured=measured)


def grid() -> tuple[PhaseLoad, PhaseLoad]:
    """Mixed steps of many sizes: one prompt beside a decode set."""
    random = np.random.default_rng(3)
    n = 120
    prefill = load(np.ones(n), random.choice([16, 32, 64, 128, 512], n), random.choice([0, 256], n))
    decode = load(random.choice([1, 4, 8, 16], n), np.ones(n), random.integers(50, 1500, n))
    return prefill, decode


def truth(steps: Steps, *, overlap: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Σ over categories of T(P,D), T(P,0), T(0,D) of the made-up device."""
    none = nobody(len(np.asarray(steps.prefill.tokens)))
    pairs = ((steps.prefill, steps.decode), (steps.prefill, none), (none, steps.decode))
    both, first, second = (sum(cost_ns(c, a, b, overlap=overlap) for c in CATEGORIES) for a, b in pairs)
    return both, first, second


@pytest.mark.parametrize("overlap", [False, True])
def test_marginal_costs_are_found_from_mixed_steps_alone(overlap: bool) -> None:
    steps = steps_of(*grid(), overlap=overlap, noise=0.02)
    result = per_step(split(learn(MODEL, steps, overlap=overlap), steps))
    both, prefill, decode = truth(steps, overlap=overlap)
    measured = result["measured_ns"].to_numpy()
    prefill_error = (measured - result["alone_decode_ns"].to_numpy()) / (both - decode) - 1
    decode_error = (measured - result["alone_prefill_ns"].to_numpy()) / (both - prefill) - 1
    assert np.median(np.abs(prefill_error)) < 0.05
    assert np.median(np.abs(decode_error)) < 0.10
    low, high = result["split_low_ns"].to_numpy(), result["split_high_ns"].to_numpy()
    assert np.mean(low <= both - decode) > 0.9
    assert np.mean(measured - high <= both - prefill) > 0.9


def test_the_gain_over_tokens_shows() -> None:
    """32 prompt tokens beside 16 decodes read the weights once: by tokens, prefill would get two thirds."""
    steps = steps_of(*grid())
    learned = learn(MODEL, steps)
    one = steps_of(load([1.0], 32, 0), load([16.0], 1, 1000))
    row = per_step(split(learned, one)).row(0, named=True)
    both, prefill, decode = (float(x[0]) for x in truth(one, overlap=False))
    assert row["interference_ns"] == pytest.approx(both - decode, rel=0.05)
    assert row["prefill_ns"] == pytest.approx((prefill + both - decode) / 2, rel=0.05)
    assert abs(row["measured_ns"] * 32 / 48 / (both - decode) - 1) > 0.5
    assert (row["split_method"], row["decode_ns"]) == ("shapley", row["measured_ns"] - row["prefill_ns"])


def test_weights_read_again_for_every_block_are_noticed() -> None:
    """A GEMM that takes 512 rows at once: the 513th costs another pass over the weights, and decode caused it."""
    prefill, decode = grid()
    n = len(np.asarray(prefill.tokens))
    weights = float(step_cost(MODEL, "gemm", PhaseLoad(tokens=1.0)).bytes) / PEAKS.bytes_per_s * 1e9

    def blocky(a: PhaseLoad, b: PhaseLoad) -> np.ndarray:
        passes = np.ceil(np.asarray(a.tokens + b.tokens) / 512)
        return cost_ns("gemm", a, b, overlap=False) + np.maximum(passes - 1, 0) * weights

    noise = np.random.default_rng(5).normal(1, 0.01, n)
    steps = Steps(
        prefill=prefill, decode=decode, measured={"gemm": np.rint(blocky(prefill, decode) * noise).astype(np.int64)}
    )  # fmt: skip
    parts = split(learn(MODEL, steps), steps)
    rows = np.asarray(prefill.tokens) == 512
    said = (parts["measured_ns"] - parts["alone_prefill_ns"]).to_numpy()[rows]
    true = (blocky(prefill, decode) - blocky(prefill, nobody(n)))[rows]
    assert np.median(np.abs(said / true - 1)) < 0.2
    smooth = cost_ns("gemm", prefill, decode, overlap=False) - cost_ns("gemm", prefill, nobody(n), overlap=False)
    assert np.median(said) > 2 * np.median(smooth[rows])


def test_one_step_and_peaks_suffice() -> None:
    """The method's formula with max(F/π, B/β), scaled to what was measured (twice the roof here)."""
    prefill, decode = load([1.0], 256, 0), load([8.0], 1, 500)
    roof = {c: step_roof_ns(MODEL, c, PEAKS, prefill, decode) for c in ("gemm", "attention")}
    measured = {c: np.rint(2 * np.asarray(t)).astype(np.int64) for c, t in roof.items()}
    steps = Steps(prefill=prefill, decode=decode, measured=measured)
    row = per_step(split(learn(MODEL, steps, peaks=PEAKS, overlap=True), steps)).row(0, named=True)
    none = nobody(1)
    alone_p, alone_d = (
        2 * sum(float(np.asarray(step_roof_ns(MODEL, c, PEAKS, a, b))[0]) for c in roof)
        for a, b in ((prefill, none), (none, decode))
    )
    total = row["measured_ns"]
    assert row["alone_prefill_ns"] == pytest.approx(alone_p, rel=0.1)
    assert row["split_low_ns"] <= total - alone_d
    assert row["split_high_ns"] >= alone_p


def test_nothing_to_go_by_leaves_the_interval_open() -> None:
    steps = steps_of(load([1.0], 30, 0), load([10.0], 1, 100))
    parts = split(learn(MODEL, steps), steps)
    assert parts["known"].to_list() == [False] * parts.height
    row = per_step(parts).row(0, named=True)
    assert (row["split_low_ns"], row["split_high_ns"]) == (0, row["measured_ns"])
    assert row["prefill_ns"] + row["decode_ns"] == row["measured_ns"]


def test_many_steps_need_no_model() -> None:
    """Rates per row and per token of context, fitted: widths are not needed where sizes vary."""
    steps = steps_of(*grid(), noise=0.02)
    result = per_step(split(learn(None, steps), steps))
    both, prefill, decode = truth(steps, overlap=False)
    measured = result["measured_ns"].to_numpy()
    prefill_error = (measured - result["alone_decode_ns"].to_numpy()) / (both - decode) - 1
    decode_error = (measured - result["alone_prefill_ns"].to_numpy()) / (both - prefill) - 1
    assert np.median(np.abs(prefill_error)) < 0.05
    assert np.median(np.abs(decode_error)) < 0.15


def test_attention_without_a_context_is_not_guessed() -> None:
    """A plain label gives tokens, not contexts: weights can be split, attention cannot."""
    prefill, decode = grid()
    blind = replace(decode, kv_tokens=np.asarray(decode.kv_tokens) * 0, qk=np.asarray(decode.qk) * 0)
    told = steps_of(prefill, decode, noise=0.02)
    steps = Steps(prefill=prefill, decode=blind, measured=told.measured)
    parts = split(learn(MODEL, steps), steps)
    assert parts.filter(pl.col("category") == "attention")["known"].unique().to_list() == [False]
    assert parts.filter(pl.col("category") == "gemm")["known"].unique().to_list() == [True]
    attention = parts.filter(pl.col("category") == "attention")
    assert attention["low_ns"].to_list() == [0] * attention.height
    assert attention["high_ns"].to_list() == attention["measured_ns"].to_list()


def test_steps_of_one_phase_go_to_it_whole() -> None:
    prefill, decode = grid()
    n = len(np.asarray(prefill.tokens))
    for side, pair in (("prefill", (prefill, nobody(n))), ("decode", (nobody(n), decode))):
        steps = steps_of(*pair, noise=0.05)
        result = per_step(split(learn(MODEL, steps), steps))
        assert result[f"{side}_ns"].to_list() == result["measured_ns"].to_list()
        assert result["split_method"].unique().to_list() == ["whole"]
        whole = result["measured_ns"] if side == "prefill" else result["measured_ns"] * 0
        assert result["split_low_ns"].to_list() == result["split_high_ns"].to_list() == whole.to_list()


def test_matched_steps_overrule_the_model() -> None:
    """The decode set alone is measured 40 % slower than any rate explains: the match says so, the model cannot."""
    prefill, decode = grid()
    n = len(np.asarray(prefill.tokens))
    mixed = steps_of(prefill, decode)
    pure = steps_of(nobody(4), load(np.full(4, 8.0), 1, np.full(4, 700)))
    slow = {c: np.rint(t * 1.4).astype(np.int64) for c, t in pure.measured.items()}

    def joined(name: str) -> np.ndarray:
        return np.concatenate([mixed.measured[name], slow[name]])

    def together(a: PhaseLoad, b: PhaseLoad) -> PhaseLoad:
        names = ("reqs", "tokens", "kv_tokens", "qq", "qk", "sampled_rows")
        return PhaseLoad(**{x: np.concatenate([np.asarray(getattr(a, x)), np.asarray(getattr(b, x))]) for x in names})

    steps = Steps(
        prefill=together(mixed.prefill, pure.prefill), decode=together(mixed.decode, pure.decode),
        measured={c: joined(c) for c in CATEGORIES},
    )  # fmt: skip
    learned = learn(MODEL, steps)
    one = steps_of(load([1.0], 512, 0), load([8.0], 1, 705))
    matched, modelled = (per_step(split(learned, one, match=match)).row(0, named=True) for match in (True, False))
    assert (matched["split_method"], modelled["split_method"]) == ("matched", "shapley")
    assert matched["alone_decode_ns"] == pytest.approx(sum(int(t[0]) for t in slow.values()), rel=0.02)
    assert matched["alone_decode_ns"] > 1.2 * modelled["alone_decode_ns"]
    far = per_step(split(learned, steps_of(load([1.0], 512, 0), load([8.0], 1, 2000)))).row(0, named=True)
    assert far["split_method"] == "shapley"
    assert split(learned, steps).filter(pl.col("step") < n)["step"].n_unique() == n


def test_a_category_without_a_model_goes_by_rows() -> None:
    prefill, decode = grid()
    rows = np.asarray(prefill.tokens + decode.tokens)
    steps = Steps(prefill=prefill, decode=decode, measured={"comm": np.rint(1_000 * rows).astype(np.int64)})
    parts = split(learn(MODEL, steps), steps)
    expected = 1_000 * np.asarray(prefill.tokens)
    assert parts["prefill_ns"].to_numpy() == pytest.approx(expected, rel=0.01)


def test_no_time_gives_no_rows() -> None:
    steps = Steps(prefill=load([1.0], 5, 0), decode=load([1.0], 1, 9), measured={"gemm": np.array([0])})
    parts = split(learn(MODEL, steps), steps)
    assert parts.is_empty()
    assert per_step(parts).is_empty()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1, 600), st.integers(0, 4000), st.integers(0, 40), st.integers(1, 4000),
            st.lists(st.integers(0, 10**10), min_size=4, max_size=4),
        ),
        min_size=1, max_size=12,
    ),
    st.booleans(),
)  # fmt: skip
def test_parts_are_the_whole_whatever_was_measured(rows: list[tuple[Any, ...]], known: bool) -> None:
    preqs, ptokens, pcontext, dreqs, dcontext, times = (list(column) for column in zip(*rows, strict=True))
    steps = Steps(
        prefill=load(preqs, ptokens, pcontext), decode=load(dreqs, 1, dcontext),
        measured={c: np.array([t[i] for t in times]) for i, c in enumerate(CATEGORIES)},
    )  # fmt: skip
    parts = split(learn(MODEL, steps, peaks=PEAKS if known else None), steps)
    assert (parts["prefill_ns"] + parts["decode_ns"]).to_list() == parts["measured_ns"].to_list()
    assert parts["prefill_ns"].min() is None or int(parts["prefill_ns"].min()) >= 0  # type: ignore[arg-type]
    assert parts["decode_ns"].min() is None or int(parts["decode_ns"].min()) >= 0  # type: ignore[arg-type]
    result = per_step(parts)
    assert int(result["measured_ns"].sum()) == sum(sum(t) for t in times)
    inside = (result["split_low_ns"] <= result["prefill_ns"]) & (result["prefill_ns"] <= result["split_high_ns"])
    assert inside.all()


def test_requests_share_their_phase_by_cost_and_sum_to_it() -> None:
    prefill, decode = grid()
    steps = steps_of(prefill, decode, noise=0.02)
    learned = learn(MODEL, steps)
    parts = split(learned, steps)
    rows = []
    for i in range(len(np.asarray(prefill.tokens))):
        q, before = float(np.asarray(prefill.tokens)[i]), float(np.asarray(prefill.kv_tokens - prefill.tokens)[i])
        rows.append((i, "prefill", q, before, 1))
        n = int(np.asarray(decode.reqs)[i])
        total = float(np.asarray(decode.kv_tokens)[i])
        contexts = np.linspace(0.5, 1.5, n) * total / n if n > 1 else np.array([total])
        rows += [(i, "decode", 1.0, context - 1, 1) for context in contexts]
    requests = pl.DataFrame(rows, schema=["step", "side", "new_tokens", "context_tokens", "sampled"], orient="row")
    shared = requests.with_columns(device_ns=device_ns(learned, parts, requests))
    sums = shared.group_by("step", "side").agg(pl.col("device_ns").sum()).sort("step", "side")
    whole = parts.group_by("step").agg(pl.col("prefill_ns", "decode_ns").sum()).sort("step")
    assert sums.filter(pl.col("side") == "prefill")["device_ns"].to_list() == whole["prefill_ns"].to_list()
    assert sums.filter(pl.col("side") == "decode")["device_ns"].to_list() == whole["decode_ns"].to_list()
    large = shared.filter(pl.col("side") == "decode").group_by("step", maintain_order=True).agg(
        first=pl.col("device_ns").first(), last=pl.col("device_ns").last(), n=pl.len()
    )  # fmt: skip
    several = large.filter(pl.col("n") > 1)
    assert (several["last"] > several["first"]).all()


def test_phase_without_requests_stays_undivided() -> None:
    steps = steps_of(load([1.0], 64, 0), load([2.0], 1, 100))
    learned = learn(MODEL, steps)
    requests = pl.DataFrame(
        {"step": [0], "side": ["prefill"], "new_tokens": [64], "context_tokens": [0], "sampled": [1]}
    )  # fmt: skip
    parts = split(learned, steps)
    assert device_ns(learned, parts, requests).to_list() == [int(parts["prefill_ns"].sum())]
    assert device_ns(learned, parts.clear(), requests).to_list() == [0]
