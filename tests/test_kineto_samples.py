"""The torch-profiler reader on recorded traces: every column equals the naive twin's, whichever parser reads."""

from __future__ import annotations

from pathlib import Path

import kineto_oracle as oracle
import polars as pl
import pytest

from traces.errors import UnreadableInput
from traces.readers.base import Cat, ReadOptions
from traces.readers.kineto import KinetoReader
from traces.readers.kineto_json.pipeline import read_document

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="no ../shared/data")

# Compared with the twin; the rest, larger and of the same make, are compared between the two parsers.
SMALL = (
    "gpu-traces/b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz",
    "gpu-traces/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "gpu-traces/vllm_decode_full/graph_execution.json.gz",
    "gpu-traces/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "gpu-traces/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "engine-traces/sglang_cpu/pfx-bystage-TP-0-EXTEND.trace.json.gz",
)
LARGE = (
    "gpu-traces/b200_vllm_eager_prefill/eager_trace.json.gz",
    "gpu-traces/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "engine-traces/vllm_cpu/tiny_simple_stacks.pt.trace.json.gz",
)


def _read(
    path: Path, *, compiled: bool, stacks: bool = False
) -> tuple[oracle.ListSink, dict[str, int], dict[str, int]]:
    sink = oracle.ListSink()
    report = read_document(path, 3, sink, ReadOptions(stacks=stacks), compiled=compiled)
    assert report.truncated is None
    assert sum(report.kept.values()) + sum(report.dropped.values()) == report.events
    return sink, report.kept, report.dropped


@pytest.mark.parametrize(("name", "stacks"), [(name, False) for name in SMALL] + [(SMALL[0], True), (SMALL[3], True)])
def test_every_column_equals_the_naive_reader(name: str, stacks: bool) -> None:
    path = DATA / name
    expected, tally = oracle.read(oracle.file_text(path), stacks=stacks)
    for compiled in (True, False):
        sink, kept, dropped = _read(path, compiled=compiled, stacks=stacks)
        assert sink.rows() == expected
        by_cat = {cat.name.lower(): sum(row["cat"] == cat for row in expected) for cat in Cat}
        assert kept | dropped == {key: count for key, count in (by_cat | tally).items() if count}


@pytest.mark.parametrize("name", LARGE)
def test_both_parsers_agree_on_large_traces(name: str) -> None:
    path = DATA / name
    (fast, *fast_counts), (slow, *slow_counts) = _read(path, compiled=True), _read(path, compiled=False)
    assert fast_counts == slow_counts
    assert _frame(fast).equals(_frame(slow))


def _frame(sink: oracle.ListSink) -> pl.DataFrame:
    events = pl.concat([pl.from_arrow(table) for table in sink.tables["events"]])
    texts = pl.concat([pl.from_arrow(table) for table in sink.tables["strings"]])
    assert events["src"].unique().to_list() == [3]
    for column in ("name", *oracle.JSON_COLUMNS):
        named = texts.select(pl.col("id").alias(column), pl.col("text").alias(f"{column}_text"))
        events = events.join(named, on=column, how="left").drop(column)
    return events.sort("seq")


def test_times_are_exact_where_floats_are_not() -> None:
    """425 kernels and 25.5 µs of idle: the union of device activities, in ns as the text of the file says."""
    sink, kept, _ = _read(DATA / "gpu-traces/vllm_decode_full/graph_execution.json.gz", compiled=True)
    assert kept["kernel"] == 425
    device = {int(Cat.KERNEL), int(Cat.MEMCPY), int(Cat.MEMSET)}
    spans = sorted((row["ts"], row["ts"] + row["dur"]) for row in sink.rows() if row["cat"] in device)
    busy, reached = 0, spans[0][0]
    for start, stop in spans:
        busy += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    idle = reached - spans[0][0] - busy
    assert abs(idle - 25_500) <= 1000


def test_facts_beside_the_events() -> None:
    path = DATA / "gpu-traces/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    report = read_document(path, 0, oracle.ListSink(), ReadOptions())
    assert report.base_ns == 1751410836000000000  # stands behind the events in this file
    assert report.trace_id == "".join(report.meta["trace_id"])
    assert report.meta["deviceProperties"][0]["name"].startswith("NVIDIA H100")
    assert {"pid", "name"} <= set(report.meta["processes"][0])
    served = DATA / "engine-traces/vllm_cpu/server_agent3turns.pt.trace.json.gz"
    assert read_document(served, 0, oracle.ListSink(), ReadOptions()).rank == 0


ODD = sorted((DATA / "odd-traces").rglob("*.json")) if DATA.exists() else []


@pytest.mark.parametrize("path", ODD, ids=lambda path: path.stem)
def test_odd_traces_are_read(path: Path) -> None:
    sinks = oracle.ListSink(), oracle.ListSink()
    reports = [read_document(path, 0, sink, ReadOptions(), compiled=sink is sinks[0]) for sink in sinks]
    assert reports[0] == reports[1]
    assert sinks[0].rows() == sinks[1].rows()
    report = reports[0]
    assert report.events == sum(report.kept.values()) + sum(report.dropped.values()) > 0
    assert KinetoReader().sniff(path, path.read_bytes()[:65536])
    is_cut = "simple-partial" in path.name
    assert (report.truncated is not None) == is_cut
    if not is_cut:
        expected, tally = oracle.read(oracle.file_text(path))
        assert sinks[0].rows() == expected
        assert {key: report.dropped.get(key, 0) for key in tally if key.startswith("unb")} == {
            key: count for key, count in tally.items() if key.startswith("unb")
        }


def test_a_file_without_events_says_so() -> None:
    with pytest.raises(UnreadableInput, match="holds no list of events"):
        read_document(
            DATA / "engine-traces/vllm_cpu/server_agent3turns.schedule.jsonl", 0, oracle.ListSink(), ReadOptions()
        )
