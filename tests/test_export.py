"""`export`: traces that viewers open, tables, metrics."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_run import Run as LedgerRun
from shell import stepscope
from test_commands import broken_graphs, served_run, small_trace
from trace_builder import DECODE, MS, US, TraceBuilder
from trace_rules import check

import analyzers.export_trace
from analyzers.report.perfetto_lanes import LEFT_OUT, Lanes
from cli import Composition
from traces.ingest import IngestOptions, ingest_once
from traces.readers.base import ReadOptions
from traces.readers.metrics import MetricsReader
from traces.store import TraceStore, table_names

SAMPLES = (
    "gpu-traces/b200_vllm_eager_prefill/eager_trace.json.gz",
    "gpu-traces/b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz",
    "gpu-traces/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "gpu-traces/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "gpu-traces/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "gpu-traces/vllm_decode_full/graph_execution.json.gz",
    "gpu-traces/vllm_prefilldecode_piecewise/graph_execution.json.gz",
)
HOSTILE_NAME = 'run "<b>" \\ \n\x1b[31m é😀'
HOSTILE = 'gemm<"a\\b">\n\t\x1b[31m\x00é😀\u2028</script>{"ph": "X"}'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of three steps."""
    folder = tmp_path_factory.mktemp("small")
    return ingested(small_trace(folder / "t.json", kernel=HOSTILE, label=f"unknown {HOSTILE}"), name=HOSTILE_NAME)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory."""
    return ingested(served_run(tmp_path_factory.mktemp("served") / "run"), name='a "b" \\n')


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ingested(path: Path, *, name: str | None = None) -> Path:
    target = path.parent / f"{path.stem}.duckdb"
    ingest_once([str(path)], target, IngestOptions(name=name, finish=Composition().analysis()))
    return target


def rows(database: Path, sql: str) -> list[tuple[object, ...]]:
    with TraceStore.open(database) as store:
        return store.query(sql).rows()


def test_a_run_of_our_own(served: Path, tmp_path: Path) -> None:
    """Steps, phases, idle causes, requests and the scheduler's counts, at the times that the run directory has."""
    done = stepscope("export", served, "-o", "t.json.gz")
    assert (done.code, done.out) == (0, "t.json.gz\n")
    found = check(tmp_path / "t.json.gz")
    base = found.top["baseTimeNanoseconds"]
    assert base == 1_700_000_000_000_000_000
    assert found.slices("rank 0 steps", "host")[0] == ("prefill", MS + 20 * US, 890 * US)
    assert [name for name, _, _ in found.slices("rank 0 steps", "device")] == ["prefill", "decode", "decode"]
    assert found.slices("rank 0 device 0", "phase") == [
        ("prefill", MS + 30 * US, 840 * US), ("decode", 2 * MS + 30 * US, 840 * US), ("decode", 3 * MS + 30 * US, 840 * US)
    ]  # fmt: skip
    assert found.slices("requests: profiled", "requests") == [
        ("a", 0, 4 * MS), ("queue", 5 * US, MS - 5 * US), ("prefill", MS, MS), ("decode", 2 * MS, 2 * MS),
    ]  # fmt: skip
    counters = found.counters("engine 77")
    assert counters["requests running n"] == [(MS, 1.0), (2 * MS, 1.0), (3 * MS, 1.0)]
    assert counters["KV blocks in use %"] == [(MS, 10.0), (2 * MS, 10.0), (3 * MS, 10.0)]
    gaps = rows(served, "select cause, start_ns, dur_ns from gaps order by start_ns")
    assert [(name, start + base, dur) for name, start, dur in found.slices("rank 0 device 0", "idle")] == gaps != []


def test_power_is_a_counter(tmp_path: Path) -> None:
    small_trace(tmp_path / "t.json", baseTimeNanoseconds=1_706_704_496_000_000_000)
    (tmp_path / "power.csv").write_text(
        "timestamp, index, power.draw [W], clocks.current.sm [MHz]\n"
        "2024/01/31 12:34:56.000, 0, 123.45 W, 1410 MHz\n2024/01/31 12:34:57.000, 0, [N/A], 1400 MHz\n"
    )
    assert stepscope("ingest", "t.json", "power.csv", "-o", "t.duckdb", "-q").code == 0
    assert stepscope("export", "t.duckdb", "-o", "out.json").code == 0
    found = check(tmp_path / "out.json").counters("rank 0 device 0")
    assert found["power W"] == [(0, 123.45)]
    assert found["SM clock MHz"] == [(0, 1410.0), (1_000_000_000, 1400.0)]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_keep_the_rules_and_lose_nothing(
    name: str, sample_database: Callable[..., Path], tmp_path: Path
) -> None:
    """Every activity that is in the database's sums is in the trace, and a trace that was exported reads as the same one."""
    database = sample_database(name)
    assert stepscope("export", database, "-o", "t.json.gz").code == 0
    found = check(tmp_path / "t.json.gz")
    base = found.top["baseTimeNanoseconds"]
    recorded = sorted(
        (event["name"], int(event["ts"] * 1000) + base, int(event["dur"] * 1000))
        for event in found.events if event["ph"] == "X" and event["cat"] != "stepscope"
    )  # fmt: skip
    assert recorded == rows(database, "select name, start_ns, dur_ns from kernels where valid order by all")
    assert stepscope("ingest", "t.json.gz", "-o", "again.duckdb", "--no-analyze", "-q").code == 0
    busy = "select device, window_start_ns, window_end_ns, busy_ns from devices order by device"
    assert rows(tmp_path / "again.duckdb", busy) == rows(database, busy)


def test_overlay_holds_our_own_tracks_only(small: Path, tmp_path: Path) -> None:
    assert (
        stepscope("export", small, "-o", "all.json").code
        == stepscope("export", small, "-o", "own.json", "--overlay").code
        == 0
    )
    everything, own = check(tmp_path / "all.json"), check(tmp_path / "own.json")
    assert everything.tracks() - own.tracks() == {("rank 0 device 0", "stream 7")}
    assert own.top == everything.top
    assert {event["cat"] for event in own.events if event["ph"] == "X"} == {"stepscope"}


def test_activities_of_a_stream_that_overlap_get_lanes(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=0).label(MS, 500 * US, DECODE)
    for number, (at, dur) in enumerate(((0, 100), (10, 20), (20, 100), (30, 10), (100, 5), (200, 5))):
        trace.launch(MS + US + number, number + 1).kernel(MS + (20 + at) * US, dur * US, number + 1, name=f"k{number}")
    trace.write(tmp_path / "t.json")
    stepscope("ingest", "t.json", "-q")
    assert stepscope("export", "t.duckdb", "-o", "o.json").code == 0
    found = check(tmp_path / "o.json")
    lanes = {
        name: [item[0] for item in found.slices("rank 0 device 0", name)]
        for _, name in found.tracks()
        if "stream" in name
    }
    assert lanes == {"stream 7": ["k0", "k4", "k5"], "stream 7 (2)": ["k1", "k3"], "stream 7 (3)": ["k2"]}


def test_requests_that_overlap_get_lanes_and_keep_their_parts(tmp_path: Path) -> None:
    made = LedgerRun(tmp_path / "r")
    for name, start in (("a", 0), ("b", 5), ("c", 40)):
        made.request(name, start, queued=start + 1, end=start + 30, tokens=(start + 10, start + 20))
        made.step(start + 2, start + 9, **{name: (64, 0, 1)}).step(start + 12, start + 19, **{name: (1, 64, 1)})
    database = made.ingest()
    assert stepscope("export", database, "-o", "o.json").code == 0
    found = check(tmp_path / "o.json")
    first, second = (found.slices("requests: control", name) for name in ("requests", "requests (2)"))
    assert [name for name, _, _ in first] == ["a", "queue", "prefill", "decode", "c", "queue", "prefill", "decode"]
    assert [(name, dur) for name, _, dur in second] == [
        ("b", 30 * MS),
        ("queue", MS),
        ("prefill", 8 * MS),
        ("decode", 10 * MS),
    ]


def test_names_of_a_recording_are_text(small: Path, tmp_path: Path) -> None:
    assert stepscope("export", small, "-o", "o.json").code == 0
    found = check(tmp_path / "o.json")
    assert {name for name, _, _ in found.slices("rank 0 device 0", "stream 7")} == {
        row[0] for row in rows(small, "select distinct name from kernels")
    }
    assert found.top["otherData"]["name"] == HOSTILE_NAME


def test_pieces_make_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder(rank=0)
    for step in range(40):
        at = 100 * US * (step + 1)
        trace.label(at, 90 * US, DECODE)
        for number in range(5):
            trace.launched(at + number, at + (10 + 7 * number) * US, 9 * US, 5 * step + number + 1)
    trace.write(tmp_path / "t.json")
    stepscope("ingest", "t.json", "-q")
    kept = []
    for size in (100_000, 7):
        monkeypatch.setattr(analyzers.export_trace, "PIECE_ROWS", size)
        assert stepscope("export", "t.duckdb", "-o", f"{size}.json").code == 0
        kept.append(check(tmp_path / f"{size}.json"))
    whole, pieces = ({name: trace.slices("rank 0 device 0", name) for _, name in trace.tracks()} for trace in kept)
    for name in ("stream 7", "stream 7 (2)", "idle"):
        assert pieces[name] == whole[name]
    assert whole["stream 7 (2)"]
    # A stretch may be cut where a piece ends; the time of each phase stays.
    assert sum(dur for _, _, dur in pieces["phase"]) == pytest.approx(
        sum(dur for _, _, dur in whole["phase"]), rel=0.05
    )


@given(
    slices=st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 20)), min_size=1, max_size=40),
    cut=st.integers(0, 40), ordered=st.booleans(),
)  # fmt: skip
def test_lanes_never_overlap_and_are_as_few_as_can_be(slices: list[tuple[int, int]], cut: int, ordered: bool) -> None:
    if ordered:
        slices = sorted((start, max(dur, 0)) for start, dur in slices)
    start, end = (np.array(column, dtype=np.int64) for column in ([s for s, _ in slices], [s + d for s, d in slices]))
    lanes = Lanes()
    placed = np.concatenate([lanes.place(start[:cut], end[:cut]), lanes.place(start[cut:], end[cut:])]).tolist()
    by_lane: dict[int, int] = {}
    for (begin, dur), lane in zip(slices, placed, strict=True):
        if lane != LEFT_OUT:
            assert dur >= 0 and begin >= by_lane.get(lane, begin)
            by_lane[lane] = begin + dur
    if ordered:
        assert LEFT_OUT not in placed
        most = max(sum(other <= begin < other + lasts for other, lasts in slices) + (dur == 0) for begin, dur in slices)
        assert len(by_lane) <= max(most, 1)


def test_tables_as_parquet(served: Path, tmp_path: Path) -> None:
    done = stepscope("export", served, "--parquet", "out/tables")
    assert (done.code, done.out) == (0, "out/tables\n")
    assert sorted(path.name for path in (tmp_path / "out" / "tables").iterdir()) == sorted(
        f"{name}.parquet" for name in table_names()
    )
    with TraceStore.open(served) as store:
        for name in table_names():
            stored = store.table(name)
            read = pl.read_parquet(tmp_path / "out" / "tables" / f"{name}.parquet")
            assert read.columns == stored.columns and read.height == stored.height, name
            keys = [column for column, kind in stored.schema.items() if not isinstance(kind, pl.List)]
            assert read.select(keys).sort(keys).equals(stored.select(keys).sort(keys)), name


class Collected:
    """A sink that keeps what a reader appends."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def append(self, name: str, rows: object) -> None:
        self.rows += rows.to_pylist()


def test_the_summary_as_prometheus_text(served: Path, tmp_path: Path) -> None:
    done = stepscope("export", served, "--prometheus")
    assert done.code == 0
    (tmp_path / "m.prom").write_text(done.out)
    sink = Collected()
    MetricsReader().read(tmp_path / "m.prom", 0, sink, ReadOptions())
    found = {(row["name"], row["labels"]): row["value"] for row in sink.rows}
    summary = stepscope("summary", served, "--json").json()
    place = json.dumps({"device": "0", "rank": "0", "run": "abc123"})
    assert found["stepscope_device_busy_seconds", place] == pytest.approx(summary["devices"][0]["busy_ns"] / 1e9)
    (info,) = (json.loads(labels) for name, labels in found if name == "stepscope_run_info")
    assert info["name"] == 'a "b" \\n'
    (ttft,) = (row for row in summary["latency"] if row["term"] == "ttft")
    labels = json.dumps({"pass": "profiled", "quantile": "0.5", "run": "abc123", "term": "ttft"})
    assert found["stepscope_latency_seconds", labels] == pytest.approx(ttft["p50_ns"] / 1e9)
    help_lines = [line.split()[2] for line in done.out.splitlines() if line.startswith("# TYPE ")]
    assert len(help_lines) == len(set(help_lines)) > 15


def test_a_withheld_number_is_no_metric(tmp_path: Path) -> None:
    broken_graphs(tmp_path / "t.json")
    stepscope("ingest", "t.json", "-q")
    done = stepscope("export", "t.duckdb", "--prometheus")
    assert "stepscope_device_idle_seconds" not in done.out
    assert 'number="devices.idle_ns"} 1' in done.out
    assert "withheld: " in done.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [((), "nothing to export"), (("--overlay", "--prometheus"), "--overlay is about the trace"),
     (("-o", "."), "is a directory"), (("-o", "t.json/t.json"), "Not a directory"), (("--parquet", "t.json"), "is no directory")],
)  # fmt: skip
def test_what_cannot_be_exported_is_exit_2(arguments: tuple[str, ...], why: str, small: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = stepscope("export", small, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and why in done.err and "hint: " in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_leaves_what_was_there(small: Path, tmp_path: Path) -> None:
    """A file that may not grow, as on a full disk."""
    (tmp_path / "o.json").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        done = stepscope("export", small, "-o", "o.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert (done.code, done.out) == (2, "") and "cannot write o.json" in done.err
    assert (tmp_path / "o.json").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["o.json"]
