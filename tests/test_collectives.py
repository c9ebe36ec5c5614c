"""What recorded collectives send: kinds, messages and groups, in one recording of eight devices and from literals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from analyzers.bounds import classified, path_bandwidth
from analyzers.costing.collectives import collective_call, from_layers, group_size, in_switch, kind_of
from analyzers.costing.operands import operands
from analyzers.costs.comm import bus_bytes
from analyzers.costs.shape import model_shape
from analyzers.datasheet import catalogue, link_rate
from analyzers.presets import model_config
from analyzers.roofline import fill
from cli import Composition
from traces.ingest import IngestOptions, ingest_once
from traces.store import writing

B200 = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "gpu-traces" / "b200_vllm_eager_prefill"
MESSAGE = 2 * 4096  # bytes of the operand below


def cost_of(
    kernel: str, shapes: list[Any], ranks: int | None, operator: str = "op", types: str = "c10::BFloat16"
) -> Any:
    call = collective_call(kernel, operator, operands(json.dumps(shapes), json.dumps([types] * len(shapes))), ranks)
    return None if call is None or call.cost is None else (call.cost.flops, call.cost.bytes)


@pytest.mark.parametrize(("kernel", "shapes", "sent"), [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", [[4096]], 2 * 7 / 8 * MESSAGE),
    ("void vllm::cross_device_reduce_2stage<...>", [[32, 128], [32, 128]], 2 * 7 / 8 * MESSAGE),
    ("multimem_all_reduce_kernel<c10::BFloat16, 16>", [[4096], [], []], 9 / 8 * MESSAGE),
    ("ncclDevKernel_AllReduce_Sum_bf16_NVLS", [[4096]], 9 / 8 * MESSAGE),
    ("ncclDevKernel_AllGather_RING_LL", [[4096]], 7 * MESSAGE),
    ("ncclDevKernel_AllGather_RING_LL", [[8, 4096], [4096]], 7 * MESSAGE),  # the result, then what was given
    ("ncclDevKernel_ReduceScatter_Sum", [[4096]], 7 / 8 * MESSAGE),
    ("ncclDevKernel_ReduceScatter_Sum", [[512], [4096]], 7 / 8 * MESSAGE),
    ("all_to_all_kernel", [[4096], [4096]], 7 / 8 * MESSAGE),
    ("ncclDevKernel_SendRecv", [[4096]], MESSAGE),
])  # fmt: skip
def test_bus_bytes_by_kernel_and_operands(kernel: str, shapes: list[Any], sent: float) -> None:
    assert cost_of(kernel, shapes, 8) == (0, sent)
    assert cost_of(kernel, shapes, None) is None, "unknown groups are not guessed"


@pytest.mark.parametrize(("kernel", "shapes", "types"), [
    ("ncclDevKernel_Broadcast_RING_LL", [[4096]], "c10::BFloat16"),
    ("ncclDevKernel_AllGather_RING_LL", [[9, 4096], [4096]], "c10::BFloat16"),  # of nine? there are eight
    ("all_to_all_kernel", [[4096], [4000]], "c10::BFloat16"),
    ("ncclDevKernel_AllReduce_Sum", [[[4096]]], "TensorList"),  # no element type
    ("ncclDevKernel_AllReduce_Sum", [], "c10::BFloat16"),
    ("ncclDevKernel_AllReduce_Sum", [[-4]], "c10::BFloat16"),
])  # fmt: skip
def test_what_does_not_tell_its_message_costs_nothing_known(kernel: str, shapes: list[Any], types: str) -> None:
    assert cost_of(kernel, shapes, 8, types=types) is None


def test_names() -> None:
    assert kind_of(None, "_C_custom_ar::all_reduce") == "all_reduce"
    assert kind_of("ncclDevKernel_AllGather_RING_LL", "record_param_comms") == "all_gather"
    assert kind_of("reduce_scatter_all_reduce", None) == "reduce_scatter"
    assert kind_of(None, None) is None
    assert in_switch("kernel", "symm_mem::multimem_all_reduce_") and not in_switch("ncclDevKernel_AllReduce", None)


def pg(*sizes: Any) -> dict[str, Any]:
    return {"world_size": 8, "pg_config": [{"pg_size": size} for size in sizes]}


@pytest.mark.parametrize(("distributed", "facts", "ranks"), [
    (pg(8, 8, 1), None, 8),
    (pg(4, 2, 1), None, None),
    (pg(4, 2), {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "data_parallel_size": 1}, None),
    (None, {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "data_parallel_size": 1}, 4),
    (None, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 1}, None),
    (None, {"tensor_parallel_size": 4}, None),
    (None, {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1}, None),
    ({"world_size": 2}, None, 2), ({"world_size": 4}, None, None), (None, None, None),
    (pg(10**400), None, None),
    (pg("8", None, True, -3, 2.0), "text", None), ({"pg_config": "x"}, [], None), ({"pg_config": [[], 7]}, {}, None),
])  # fmt: skip
def test_the_size_of_a_group_is_known_or_it_is_not(distributed: Any, facts: Any, ranks: int | None) -> None:
    assert group_size(distributed, facts) == ranks


def test_all_reduces_of_graphs_by_the_model() -> None:
    model = model_shape(model_config("tiny"))  # two layers of 128 wide
    layers = [0, 1, 1, 2, 2]
    rows = pl.DataFrame({
        "kernel_id": range(5), "layer": layers, "name": ["cross_device_reduce_1stage"] * 4 + ["multimem_all_reduce"],
    }).with_columns(rank=0, device=0, step_id=1, category=pl.lit("comm"), layers=2, tokens=10)  # fmt: skip
    found = from_layers(model, rows, 4)
    message = 10 * 128 * 2
    assert found["bytes"].to_list() == [pytest.approx(1.5 * message)] * 4 + [pytest.approx(1.25 * message)]
    assert found["flops"].to_list() == [0.0] * 5
    for other in (rows.with_columns(tokens=0), rows.with_columns(layers=3)):
        assert from_layers(model, other, 4).height == 0
    assert from_layers(model, rows[1:3], 4).height == 2
    assert from_layers(model, rows[1:2], 4).height == 0, "one per layer is not tensor parallelism's"
    assert from_layers(model, rows, None).height == from_layers(model, rows, 1).height == 0


def test_collectives_are_held_against_the_link_and_stay_comm() -> None:
    assert (link_rate("NVIDIA B200"), link_rate("no such device"), link_rate(None)) == (900e9, None, None)
    for device in catalogue():
        assert device.peer_bytes_s == (device.link_bytes_s / 2 if device.link_bytes_s else device.pcie_bytes_s)
    rows = pl.DataFrame({
        "category": ["comm", "comm", "memcpy", "gemm"], "name": ["a", "b", "Memcpy HtoD", None], "flops": [0.0, 0.0, 0.0, 1.0],
        "bytes": [9e5, 9e5, 5e5, 5e5], "dur_ns": [20_000] * 4, "soft": [False] * 4, "cost_source": ["shapes"] * 4,
        "device_link": [9e10, None, 9e10, 9e10], "host_link": [5e10] * 4, "peak_bandwidth": [1e12] * 4,
    }).with_columns(peak_flops=1e15, cache_bandwidth=pl.lit(None, pl.Float64), least_bytes=pl.lit(None, pl.Float64))  # fmt: skip
    found = classified(rows.with_columns(peak_bandwidth=path_bandwidth()))
    assert found["roof_fraction"].to_list() == [pytest.approx(0.5), None, pytest.approx(0.5), pytest.approx(0.025)]
    assert found["bound"].to_list() == ["comm", "comm", "memory", "inefficient"]


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (B200 / "eager_trace.json.gz").exists():
        pytest.skip(f"sample recording is not here: {B200}")
    target = tmp_path_factory.mktemp("comm") / "b200.duckdb"
    ingest_once([str(B200 / "eager_trace.json.gz")], target, IngestOptions(finish=Composition().analysis()))
    return target


def test_one_rank_of_eight(eight: Path) -> None:
    """74 collectives; that one all-reduce moves 888 tokens of 2880 tells that operands are as they seem."""
    with duckdb.connect(str(eight), read_only=True) as con:
        rows = con.execute(
            "SELECT bytes, count(*), max(roof_fraction) < 0.5, min(bound), count(side) FROM kernels WHERE category = 'comm' GROUP BY 1 "
            "ORDER BY 1"
        ).fetchall()  # fmt: skip
        told = con.execute("SELECT count(*) FROM health WHERE check_id = 'collectives'").fetchall()
    sizes = [bus_bytes("all_gather", 8 * 25_136 * 2, 8), *(n * 2 * 9 / 8 for n in (888 * 2880, 2_727_936))]
    assert rows == [(sizes[0], 1, True, "comm", 1), (sizes[1], 37, True, "comm", 37), (sizes[2], 36, True, "comm", 36)]
    assert told == [(0,)]


def test_groups_of_several_sizes_cost_nothing_and_are_said(eight: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(eight.read_bytes())
    with writing(copy) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        patch = json.dumps({"distributedInfo": pg(8, 4)})
        con.execute("UPDATE runs SET config = json_merge_patch(config, ?::JSON)", [patch])
        fill(con, run_id, None)
        rows = con.execute(
            "SELECT DISTINCT bytes, roof_fraction, bound FROM kernels WHERE category = 'comm'"
        ).fetchall()
        told = con.execute("SELECT status, message FROM health WHERE check_id = 'collectives'").fetchall()
    assert rows == [(None, None, "comm")]
    assert [status for status, _ in told] == ["warning"] and told[0][1].startswith("74 collectives (")
