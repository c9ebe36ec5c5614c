"""Tensor, pipeline, expert and data parallel: bytes per collective, what a device holds, floors, and facts of runs."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from analyzers import pipeline
from analyzers.commands.predict import predict as predict_command
from analyzers.costs.attention import PhaseLoad
from analyzers.costs.comm import bus_bytes, expected_ranks, stage_transfers, wire_bytes
from analyzers.costs.model import step_cost
from analyzers.costs.parallel import Parallel, of_one_rank, stages_of
from analyzers.costs.shape import ModelShape, model_shape
from analyzers.costs.weights import weight_counts
from analyzers.report.predict_text import predict_lines
from analyzers.scenario import Expectation, asked, expect
from traces.errors import UsageProblem
from traces.store import schema_sql

DENSE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 128,
    "vocab_size": 100, "dtype": "bfloat16",
}  # fmt: skip
SPARSE = {**DENSE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
BOTH = {"peak_flops": "1000T", "bandwidth": "2TB/s"}


def shape(config: dict[str, Any] = DENSE) -> ModelShape:
    return model_shape(config, dtype="bfloat16")


def expected(model: str = "llama-3.1-70b", **words: Any) -> Expectation:
    words = words if "peak_flops" in words else {"gpu": "H100-SXM", **words}
    return expect(*asked({"model": model, "prompt": 1000, **words}))


@pytest.mark.parametrize(
    ("kind", "two", "eight"),
    [
        ("all_reduce", 800.0, 1400.0),
        ("all_gather", 400.0, 700.0),
        ("reduce_scatter", 400.0, 700.0),
        ("all_to_all", 400.0, 700.0),
        ("send_recv", 800.0, 800.0),
    ],
)
def test_bus_bytes_of_a_message_of_800_bytes(kind: Any, two: float, eight: float) -> None:
    assert [bus_bytes(kind, 800, ranks) for ranks in (1, 2, 8)] == [0, two, eight]
    assert wire_bytes(kind, 800, 8) == 2 * eight


def test_collectives_that_do_not_exist() -> None:
    with pytest.raises(UsageProblem, match="unknown collective broadcast"):
        bus_bytes("broadcast", 1, 2)  # type: ignore[arg-type]
    with pytest.raises(UsageProblem, match="a group of 0 ranks"):
        bus_bytes("all_reduce", 1, 0)


def test_a_token_reaches_the_ranks_of_its_experts() -> None:
    assert expected_ranks(8, 2, 8) == 2  # one expert on each: two ranks
    assert expected_ranks(8, 2, 4) == pytest.approx(4 * (1 - 15 / 28))  # C(6,2) / C(8,2)
    assert expected_ranks(8, 2, 1) == 1


def test_tensor_parallel_sends_two_all_reduces_per_layer() -> None:
    sent = stage_transfers(of_one_rank(shape(), Parallel(tensor=4)), Parallel(tensor=4), tokens=10)
    assert [(each.kind, each.ranks, each.count, each.message_bytes) for each in sent] == [
        ("all_reduce", 4, 12, 10 * 64 * 2)
    ]
    assert (sent[0].bus_bytes, sent[0].wire_bytes, sent[0].flops) == (12 * 1.5 * 1280, 12 * 3 * 1280, 0)
    assert sent[0].floor_s(23_040) == 1.0
    assert sent[0].floor_s(None) is None


def test_experts_of_several_replicas_are_reached_by_two_all_to_all_per_layer() -> None:
    parallel = Parallel(tensor=2, data=4, expert=8)
    sent = stage_transfers(of_one_rank(shape(SPARSE), parallel), parallel, tokens=10)
    found = [(each.purpose, each.kind, each.ranks, each.count, each.message_bytes) for each in sent]
    assert found == [
        ("tensor", "all_reduce", 2, 6, 1280.0),
        ("tensor", "all_gather", 2, 6, 1280.0),
        ("dispatch", "all_to_all", 8, 6, 1280 / 2 * 2),
        ("combine", "all_to_all", 8, 6, 1280 / 2 * 2),
    ]


def test_experts_within_a_tensor_parallel_group_send_nothing_of_their_own() -> None:
    parallel = Parallel(tensor=4, expert=4)
    sent = stage_transfers(of_one_rank(shape(SPARSE), parallel), parallel, tokens=10)
    assert [(each.kind, each.count) for each in sent] == [("all_reduce", 12)]


def test_stages_take_the_layers_in_order_and_the_remainder_before_the_last() -> None:
    config = {**DENSE, "model_type": "gemma2", "sliding_window": 16, "num_hidden_layers": 7, "head_dim": 8}
    parts = stages_of(model_shape(config, dtype="bfloat16"), 3)
    assert [part.windows for part in parts] == [(16, None), (16, None, 16), (None, 16)]
    assert [(part.first, part.last) for part in parts] == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("tied", [True, False])
def test_stages_hold_the_model_and_a_tied_table_twice(tied: bool) -> None:
    parts = [weight_counts(part, tied=tied).total for part in stages_of(shape(), 3)]
    assert sum(parts) == weight_counts(shape(), tied=tied).total + (6400 if tied else 0)
    layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert parts == [2 * layer + 6400, 2 * layer, 2 * layer + 6400 + 64]


@pytest.mark.parametrize("category", ["gemm", "attention", "norm", "activation", "logits", "sampling", "embedding"])
def test_costs_of_stages_sum_to_the_models(category: str) -> None:
    load = PhaseLoad(reqs=2, tokens=2, kv_tokens=60, qq=2, qk=60, sampled_rows=2)
    parts = [step_cost(part, category, decode=load) for part in stages_of(shape(), 4)]
    whole = step_cost(shape(), category, decode=load)
    assert sum(float(part.flops) for part in parts) == pytest.approx(float(whole.flops))
    assert sum(float(part.bytes) for part in parts) == pytest.approx(float(whole.bytes))


def test_expert_ranks_divide_whole_experts() -> None:
    # 8 experts of 3 · 64 · 128 weights over 8 ranks of 4 replicas, 5 tokens each, 2 experts per token
    share = of_one_rank(shape(SPARSE), Parallel(tensor=2, data=4, expert=8))
    assert share.moe is not None
    assert (share.moe.width, share.moe.ranks, share.moe.replicas) == (128, 8, 4)
    assert weight_counts(share, tied=False).experts == 6 * 24_576
    cost = step_cost(share, "moe", prefill=PhaseLoad(tokens=5))
    rows = 5 * 4 * 2 / 8
    assert float(cost.flops) == pytest.approx(6 * 2 * rows * 24_576)
    reached = 1 - 0.75**20
    assert float(cost.bytes) == pytest.approx(6 * 2 * (reached * 24_576 + rows * (2 * 64 + 3 * 128)))


def test_expert_ranks_fewer_than_tensor_ranks_divide_the_rest_by_width() -> None:
    share = of_one_rank(shape(SPARSE), Parallel(tensor=8, expert=2))
    assert share.moe is not None
    assert (share.moe.width, share.moe.ranks, share.moe.replicas) == (32, 2, 1)
    by_width = of_one_rank(shape(SPARSE), Parallel(tensor=8))
    assert weight_counts(share, tied=False).experts == weight_counts(by_width, tied=False).experts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tensor_parallel": 7}, "cannot be divided over 7 ranks"),
        ({"pipeline_parallel": 81}, "80 layers cannot be divided over 81 pipeline stages"),
        ({"expert_parallel": 2}, "llama has no experts"),
        ({"model": "qwen3-30b-a3b", "expert_parallel": 8}, "over 8 of 1 × 1 devices"),
        ({"model": "qwen3-30b-a3b", "expert_parallel": 6, "data_parallel": 6}, "128 experts cannot be divided over 6"),
        ({"model": "qwen3-30b-a3b", "expert_parallel": 4, "data_parallel": 6}, "over 4 of 1 × 6 devices"),
        ({"model": "qwen3-30b-a3b", "expert_parallel": 2, "data_parallel": 2, "convention": "textbook"}, "no experts"),
        ({"tensor_parallel": 2, "link_bandwidth": "fast"}, "--link-bandwidth fast is not a rate"),
    ],
)
def test_combinations_that_cannot_be(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageProblem, match=message) as caught:
        expected(**words)
    assert caught.value.hint


def test_a_pipeline_adds_up_to_latency_and_divides_memory() -> None:
    one, four = (expected(pipeline_parallel=n, batch=8, link_bandwidth="100GB/s").prediction for n in (1, 4))
    sent = 3 * 1000 * 8192 * 2
    assert four.prefill.comm_bytes == sent
    assert four.prefill.comm_s == pytest.approx(sent / 100e9)
    assert four.prefill.floor_s == pytest.approx(one.prefill.floor_s + sent / 100e9)
    assert four.prefill.flops == pytest.approx(one.prefill.flops)
    assert [stage.layers for stage in four.stages] == [20, 20, 20, 20]
    assert sum(stage.weights_bytes for stage in four.stages) == pytest.approx(one.memory.weights_bytes)
    assert four.memory.weights_bytes == max(stage.weights_bytes for stage in four.stages)
    assert four.kv_bytes_per_token == one.kv_bytes_per_token / 4
    assert four.decode.floor_s == pytest.approx(sum(stage.decode_s for stage in four.stages))
    assert four.decode.period_s == max(stage.decode_s for stage in four.stages)
    assert four.decode.tokens_per_s == pytest.approx(8 / four.decode.period_s)
    assert four.deployment.requests_in_flight == 32
    assert four.deployment.kv_bytes_in_flight == 4 * four.memory.kv_bytes


def test_replicas_multiply_throughput_and_nothing_else() -> None:
    one, three = (expected("llama-3.1-8b", data_parallel=n, batch=8, price=2.0).prediction for n in (1, 3))
    assert three.decode.floor_s == one.decode.floor_s
    assert three.decode.tokens_per_s == pytest.approx(3 * one.decode.tokens_per_s)
    assert three.batches[3].tokens_per_s == pytest.approx(3 * one.batches[3].tokens_per_s)
    assert (three.memory, three.prices) == (one.memory, one.prices)
    assert (three.deployment.devices, three.decode.communication) == (3, ())


def test_without_a_link_there_are_bytes_but_no_time() -> None:
    found = expected(**BOTH, tensor_parallel=2)
    prefill = found.prediction.prefill
    assert prefill.comm_bytes == 80 * 2 * 1000 * 8192 * 2
    assert (prefill.comm_s, prefill.communication[0].floor_s) == (None, None)
    assert prefill.floor_s == max(prefill.compute_s, prefill.memory_s)
    assert any("give --link-bandwidth" in note for note in found.notes)
    given = expected(**BOTH, tensor_parallel=2, link_bandwidth="10GB/s").prediction.prefill
    assert given.comm_s == pytest.approx(prefill.comm_bytes / 10e9)
    assert given.floor_s == pytest.approx(prefill.floor_s + prefill.comm_bytes / 10e9)


def test_textbook_pipeline_divides_evenly() -> None:
    one, two = (expected(convention="textbook", pipeline_parallel=n).prediction for n in (1, 2))
    assert two.memory.weights_bytes == 70e9
    assert two.decode.floor_s == pytest.approx(one.decode.floor_s)
    assert two.decode.period_s == pytest.approx(one.decode.floor_s / 2)


def test_what_is_printed_of_several_devices() -> None:
    found = expected("qwen3-30b-a3b", tensor_parallel=2, pipeline_parallel=2, data_parallel=4, expert_parallel=8)
    text = "\n".join(predict_lines(found))
    for words in (
        "× 2 (tensor parallel) × 2 (pipeline stages) × 4 (replicas), experts over 8", "all-gather", "all-to-all",
        "send-recv", "dispatch", "without bubbles", "All 16 devices", "4 replicas with equal load",
    ):  # fmt: skip
        assert words in text


def test_the_command_takes_the_degrees() -> None:
    words = ["--model", "qwen3-30b-a3b", "--gpu", "H100-SXM", "--tp", "2", "--pp", "2", "--dp", "2", "--ep", "4"]
    result = CliRunner().invoke(predict_command, [*words, "--link-bandwidth", "50GB/s", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    degrees = [found[f"{name}_parallel"] for name in ("tensor", "pipeline", "expert", "data")]
    assert degrees == [2, 2, 4, 2]
    assert len(found["prediction"]["stages"]) == 2
    assert {each["purpose"] for each in found["prediction"]["decode"]["communication"]} == {
        "tensor", "dispatch", "combine", "pipeline",
    }  # fmt: skip


def of_run(config: dict[str, Any], con: duckdb.DuckDBPyConnection | None = None, **facts: Any) -> ModelShape | None:
    con = con or duckdb.connect()
    con.execute(schema_sql())
    con.execute(
        "INSERT INTO runs (run_id, config) VALUES ('r', ?)",
        [json.dumps({"model_config": config, "engine_facts": facts})],
    )
    return pipeline._model(con, "r", given=False)


def test_facts_of_a_run_divide_its_model() -> None:
    assert of_run(DENSE) == shape()
    assert of_run(DENSE, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_rank=0) == shape()
    assert of_run(DENSE, tensor_parallel_size=2) == shape().divided(2)
    staged = of_run(DENSE, pipeline_parallel_size=3)
    assert staged is not None
    assert (staged.layers, staged.first, staged.last) == (2, True, True)
    sparse = of_run(SPARSE, tensor_parallel_size=4, enable_expert_parallel=True)
    assert sparse is not None and sparse.moe is not None
    assert (sparse.moe.ranks, sparse.moe.width, sparse.heads_q) == (4, 128, 2)
    assert of_run(SPARSE, tensor_parallel_size=4) == shape(SPARSE).divided(4)


def test_a_run_whose_ranks_differ_has_no_one_model() -> None:
    assert of_run(DENSE, pipeline_parallel_size=4) is None  # 6 layers
    assert of_run(SPARSE, data_parallel_size=2, data_parallel_rank=0) is None  # experts see other replicas' tokens
    assert of_run(SPARSE, data_parallel_rank=1) is None
    assert of_run(DENSE, data_parallel_size=2, data_parallel_rank=1) == shape()
    assert of_run(SPARSE, tensor_parallel_size=3, enable_expert_parallel=True) is None


@pytest.mark.parametrize(
    ("config", "facts", "told"),
    [
        (DENSE, {"pipeline_parallel_size": 4}, "the pipeline's 4 stages are unlike each other (1, 2, 2, 1 layers), so"),
        (SPARSE, {"data_parallel_rank": 1}, "experts compute tokens of other data-parallel replicas, of which"),
        ({**DENSE, "model_type": "a_new_one"}, {}, "the cost model does not know model_type 'a_new_one'; give one"),
        (DENSE, {"tensor_parallel_size": "two"}, "the engine's tensor_parallel_size is 'two', not a number"),
        (DENSE, {"pipeline_parallel_size": -3}, "a degree of parallelism below 1"),
        (DENSE, {"tensor_parallel_size": 3}, "heads cannot be divided over 3 ranks; give one that fits"),
    ],
)
def test_a_model_that_is_not_used_is_said(config: dict[str, Any], facts: dict[str, Any], told: str) -> None:
    con = duckdb.connect()
    assert of_run(config, con, **facts) is None
    rows = con.execute("SELECT check_id, status, value, message FROM health").fetchall()
    assert [row[:3] for row in rows] == [("model_shape", "warning", None)]
    assert told in rows[0][3] and "--" in rows[0][3]
    con.execute("UPDATE runs SET config = json_merge_patch(config, '{\"engine_facts\": null}')")
    pipeline._model(con, "r", given=False)
    again = con.execute("SELECT count(*) FROM health").fetchall()
    assert again == [(1 if config["model_type"] == "a_new_one" else 0,)], "replaced by the next analysis"
