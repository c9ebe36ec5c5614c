"""Costs of operators, layers, windows and bounds, from literals."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

from analyzers.bounds import classified
from analyzers.costing.doubts import Doubts
from analyzers.costing.operands import operands
from analyzers.costing.operators import call_cost
from analyzers.costing.sequence import layered
from traces.store import named_sql

BF16 = '"c10::BFloat16"'


@pytest.mark.parametrize(("name", "category", "shapes", "flops", "moved"), [
    ("aten::mm", "gemm", [[4, 8], [8, 16]], 2 * 4 * 8 * 16, 2 * (32 + 128 + 64)),
    ("aten::addmm", "gemm", [[16], [4, 8], [8, 16]], 2 * 4 * 8 * 16 + 64, 2 * (32 + 128 + 16 + 64)),
    ("aten::linear", "gemm", [[2, 4, 8], [16, 8]], 2 * 8 * 8 * 16, 2 * (64 + 128 + 128)),
    ("_C::onednn_mm", "gemm", [[4, 16], [4, 8]], 2 * 4 * 8 * 16, 2 * (32 + 128 + 64)),
    ("aten::bmm", "gemm", [[3, 4, 8], [3, 8, 16]], 3 * 2 * 4 * 8 * 16, 3 * 2 * (32 + 128 + 64)),
    ("_C::rms_norm", "norm", [[4, 8], [4, 8], [8]], 4 * 32, 2 * (64 + 8)),
    ("_C::fused_add_rms_norm", "norm", [[4, 8], [4, 8], [8]], 5 * 32, 2 * (128 + 8)),
    ("_C::silu_and_mul", "activation", [[4, 8], [4, 16]], 6 * 32, 2 * 96),
    ("aten::add", "elementwise", [[4, 8], [8]], 32, 2 * (32 + 8 + 32)),
    ("aten::copy_", "elementwise", [[4, 8], [4, 8]], 0, 2 * 64),
    ("aten::view", "elementwise", [[4, 8]], 0, 0),
    ("aten::embedding", "embedding", [[100, 8], [4]], 0, 2 * 2 * 4 * 8),
    ("_C_cache_ops::reshape_and_cache_flash", "kv_cache", [[4, 2, 8], [4, 2, 8], [10, 16, 2, 8]], 0, 2 * 64 * 4),
])  # fmt: skip
def test_operators_cost_what_their_operands_say(
    name: str, category: str, shapes: list[list[int]], flops: float, moved: float
) -> None:
    call = call_cost(name, category, operands(json.dumps(shapes), json.dumps(["c10::BFloat16"] * len(shapes))))
    assert call is not None and call.cost is not None
    assert (float(call.cost.flops), float(call.cost.bytes)) == (flops, moved)


@pytest.mark.parametrize(("shapes", "dtypes"), [
    ("[[4, 8], [9, 16]]", f"[{BF16}, {BF16}]"), ("[[4, 8], [8, 16]]", '["", ""]'), ("not json", "[]"), ("{}", "[]"),
    ("[[4, -8], [8, 16]]", f"[{BF16}, {BF16}]"), ('[["a"], [8, 16]]', f"[{BF16}, {BF16}]"), ("[[], []]", f"[{BF16}, {BF16}]"),
])  # fmt: skip
def test_operands_that_do_not_fit_give_no_cost(shapes: str, dtypes: str) -> None:
    assert call_cost("aten::mm", "gemm", operands(shapes, dtypes)) is None


@pytest.mark.parametrize(("name", "shapes", "flops"), [
    ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 4, 121, 64], [1, 2, 121, 64], [1, 2, 121, 64]], 4 * 4 * 64 * 121**2 / 2),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 4, 1, 64], [1, 2, 130, 64], [1, 2, 130, 64]], 4 * 4 * 64 * 130),
    ("aten::_flash_attention_forward", [[16, 559, 16, 64]] * 3, 16 * 4 * 16 * 64 * 559**2 / 2),
])  # fmt: skip
def test_attention_over_whole_prompts(name: str, shapes: list[list[int]], flops: float) -> None:
    call = call_cost(name, "attention", operands(json.dumps(shapes), json.dumps(["c10::BFloat16"] * 3)))
    assert call is not None and call.cost is not None
    assert float(call.cost.flops) == flops


def test_windows_by_request(tmp_path: Path) -> None:
    """What the query says against counting position by position."""
    requests = [("prefill", 5, 5), ("prefill", 3, 9), ("decode", 1, 20), ("decode", 1, 2), ("verify", 3, 7)]
    with duckdb.connect(str(tmp_path / "windows.duckdb")) as con:
        con.execute(
            "CREATE TABLE step_requests (run_id VARCHAR, step_id BIGINT, phase VARCHAR, new_tokens BIGINT, context_tokens BIGINT)"
        )
        con.executemany("INSERT INTO step_requests VALUES ('r', 1, ?, ?, ?)", requests)
        sql = named_sql("roofline_windows", "analyzers")
        for span in (1, 4, 8, 100):
            found = con.execute(sql, {"run_id": "r", "spans": [span]}).fetchall()
            expected = [0.0, 0.0, 0.0, 0.0]
            for phase, new, context in requests:
                side = 0 if phase == "prefill" else 2
                positions = range(context - new, context)
                expected[side] += len({key for at in positions for key in range(max(0, at - span + 1), at + 1)})
                # of a prompt's tokens that still see everything, their own key counts half: that is q²/2
                own = 0.5 if phase == "prefill" else 0
                expected[side + 1] += sum(min(at + 1, span) - (own if at < span else 0) for at in positions)
            assert found == [(1, span, *expected)]


def test_a_padded_batch_is_no_contradiction() -> None:
    rows = pl.DataFrame({
        "kernel_id": [1, 2], "category": ["gemm", "attention"], "step_id": [7, 7], "tokens": [5, 5], "layers": [1, 1],
        "captured": [True, True],
    })  # fmt: skip
    direct = pl.DataFrame({"kernel_id": [1, 2], "flops": [8e6, 1.0]})
    for model_flops, compared in ((5e6, 0), (5.3e6, 2), (9e6, 2)):
        doubts = Doubts(model=None)
        doubts.add_sources(rows, direct, pl.DataFrame({"kernel_id": [1, 2], "flops": [model_flops, 1.0]}))
        assert sum(part.height for part in doubts._sources) == compared


def test_attention_geometry_from_caches_of_either_layout() -> None:
    types = json.dumps(["c10::BFloat16"] * 3)
    for cache in ([455, 4, 128, 64], [455, 128, 4, 64]):
        call = call_cost("mha_with_cache", "attention", operands(json.dumps([[7, 12, 64], cache, cache]), types))
        assert call is not None and call.heads is not None
        assert (call.heads.heads_q, call.heads.heads_kv, call.heads.dim_v) == (12, 4, 64)


def test_layers_are_found_by_attention() -> None:
    names = ["mm", "attn", "attn_reduce", "mm", "splitKreduce_kernel", "mm", "mm", "attn", "mm"]
    categories = ["gemm", "attention", "attention", "gemm", "gemm", "gemm", "gemm", "attention", "gemm"]
    rows = pl.DataFrame({"kernel_id": range(9), "name": names, "category": categories}).with_columns(
        rank=0, device=0, step_id=1, op_start_ns=pl.lit(None, dtype=pl.Int64)
    )
    found = layered(rows)
    assert found["layer"].to_list() == [0, 1, 1, 1, 1, 1, 1, 2, 2]
    assert found["product"].to_list() == [1, 0, 0, 1, 1, 2, 3, 0, 1]
    assert found["products"].to_list() == [1, 3, 3, 3, 3, 3, 3, 1, 1]


def test_bounds_by_the_thresholds() -> None:
    rows = pl.DataFrame({
        "category": ["gemm", "gemm", "gemm", "gemm", "comm", "gemm", "moe", "elementwise", "gemm"],
        "flops": [60e6, 1e3, 1e3, 1e3, 0.0, 1e9, 1e3, 1e3, None],
        "bytes": [1e3, 60e3, 1e3, 1e3, 1e3, 1e3, 1e6, 1e6, None],
        "least_bytes": [None, None, None, None, None, None, 1e3, None, None],
        "soft": [False, False, False, False, False, False, False, True, None],
        "dur_ns": [100_000, 100_000, 10_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000],
        "cost_source": ["shapes"] * 8 + [None],
    }).with_columns(peak_flops=1e12, peak_bandwidth=1e9, cache_bandwidth=pl.lit(None, dtype=pl.Float64))  # fmt: skip
    found = classified(rows)
    assert found["bound"].to_list() == [
        "compute",
        "memory",
        "latency",
        "inefficient",
        "comm",
        None,
        None,  # how many experts were read is not known
        None,
        None,
    ]
    assert found["side"].to_list() == ["compute", "memory", "memory", "memory", "memory", None, "memory", None, None]
    assert found["impossible"].to_list() == [False] * 5 + [True, False, None, None]
    assert found["flops"].to_list()[7:] == [None, None] and found["bytes"][6] == pytest.approx(1e5)


def test_what_a_cache_explains_is_not_impossible() -> None:
    row = pl.DataFrame({
        "category": ["gemm"], "flops": [1e3], "bytes": [1e6], "soft": [False], "dur_ns": [100_000], "cost_source": ["shapes"],
        "peak_flops": [1e12], "peak_bandwidth": [1e9], "cache_bandwidth": [2e10],
    }).with_columns(least_bytes=pl.lit(None, dtype=pl.Float64))  # fmt: skip
    found = classified(row)
    assert (found["roof_fraction"][0], found["bound"][0], found["impossible"][0]) == (
        pytest.approx(0.5),
        "memory",
        False,
    )


def test_what_is_smaller_than_anything_measured_has_no_roof() -> None:
    """1 kB in 100 ns comes from a cache nearer than any that the calibration reads."""
    rows = pl.DataFrame({
        "bytes": [1e3, 1e3, 5e4, 1e3, 0.0, 1e3], "dur_ns": [100, 900, 100, 100, 100, 100], "flops": [0.0, 0.0, 0.0, 1e6, 0.0, 9e4],
    }).with_columns(
        category=pl.lit("elementwise"), soft=pl.lit(False), cost_source=pl.lit("shapes"), peak_flops=1e12, peak_bandwidth=1e9,
        cache_bandwidth=2e9, least_bytes=pl.lit(None, dtype=pl.Float64),
    )  # fmt: skip
    found = classified(rows, 400.0, 32_768.0)
    #                     too small, long enough, large enough, computes too much, moves nothing, computes for its time
    assert found["bound"].to_list() == ["latency", "memory", None, None, "latency", "latency"]
    assert found["side"].to_list() == ["memory", "memory", None, None, None, "memory"]
    assert found["impossible"].to_list() == [None, False, True, True, False, None]
    assert found["roof_fraction"].to_list() == [None, pytest.approx(0.5556, abs=1e-3), 250, 10, 0, None]
    # without a calibration nothing says how small is small
    assert classified(rows)["impossible"].to_list() == [True, False, True, True, False, True]
    assert classified(rows, 400.0)["impossible"].to_list() == [True, False, True, True, False, True]


def test_without_peaks_there_are_costs_but_no_verdict() -> None:
    row = pl.DataFrame({
        "category": ["gemm"], "flops": [1e3], "bytes": [1e3], "soft": [False], "dur_ns": [1_000], "cost_source": ["shapes"],
    })  # fmt: skip
    row = row.with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name)
        for name in ("peak_flops", "peak_bandwidth", "cache_bandwidth", "least_bytes")
    )
    found = classified(row).to_dicts()[0]
    assert (found["intensity"], found["side"], found["bound"], found["roof_fraction"]) == (1.0, None, None, None)
