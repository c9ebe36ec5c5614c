"""From files to a run: what becomes of each kind of input, and that run directories come out whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_builder import DECODE, MS, US, RunBuilder, TraceBuilder

from traces.errors import NothingToAnalyze, UnreadableInput, UsageProblem
from traces.ingest import IngestOptions, IngestReport, default_target, ingest_once
from traces.store import TraceStore

RID = "cmpl-a-0-00c0ffee"


def trace(*, rank: int = 0, world_size: int = 1, at: int = MS, name: str = "gemm", **top: Any) -> TraceBuilder:
    return TraceBuilder(rank=rank, world_size=world_size, **top).label(at, 50 * US, DECODE).launched(
        at + US, at + 10 * US, 20 * US, 1, name=name
    )  # fmt: skip


def served() -> RunBuilder:
    """One request: a chunk of 40 tokens, the rest of the prompt, two decode steps."""
    run = RunBuilder().request("a", 0, [3 * MS, 4 * MS, 5 * MS], prompt=64)
    run.step(MS, 900 * US, [{"id": RID, "new": 40, "computed": 0, "prompt": 64, "acc": 0}])
    run.step(2 * MS, 900 * US, [{"id": RID, "new": 24, "computed": 40, "prompt": 64}])
    for number in range(2):
        row = {"id": RID, "new": 1, "computed": 64 + number, "prompt": 64, "out": 1 + number}
        run.step((3 + number) * MS, 900 * US, [row])
    return run


def ingested(folder: Path, *paths: Path, **options: Any) -> tuple[IngestReport, TraceStore]:
    report = ingest_once([str(path) for path in paths], folder / "out.duckdb", IngestOptions(**options))
    return report, TraceStore.open(folder / "out.duckdb")


def test_a_run_directory(tmp_path: Path) -> None:
    folder = served().write(tmp_path / "run")
    report, store = ingested(tmp_path, folder)
    with store:
        (run,) = store.table("runs").to_dicts()
        steps = store.query(
            "SELECT kind, source, prefill_tokens, decode_tokens, n_kernels, busy_ns FROM steps ORDER BY seq"
        ).to_dicts()
        (request,) = store.table("requests").to_dicts()
        tokens = store.query("SELECT i, ts_ns FROM tokens ORDER BY i").rows()
        rows = store.query("SELECT phase, new_tokens, context_tokens FROM step_requests ORDER BY step_id").rows()
        roles = set(store.table("sources")["role"])
    start = RunBuilder().start_ns
    assert report.run_id == run["run_id"] == "abc123"
    assert (run["name"], run["engine"], run["clock"], run["source"]) == ("built", "vllm", "epoch", "profile")
    assert (run["window_start_ns"], run["window_end_ns"]) == (start, start + 4 * MS + 910 * US)
    assert [step["kind"] for step in steps] == ["prefill", "prefill", "decode", "decode"]
    assert {step["source"] for step in steps} == {"ledger"}
    assert [(step["prefill_tokens"], step["decode_tokens"]) for step in steps] == [(40, 0), (24, 0), (0, 1), (0, 1)]
    assert {(step["n_kernels"], step["busy_ns"]) for step in steps} == {(1, 840 * US)}
    assert rows == [("prefill", 40, 40), ("prefill", 24, 64), ("decode", 1, 65), ("decode", 1, 66)]
    assert (request["request_id"], request["client_request_id"]) == (RID, "a")
    assert (request["arrival_ns"], request["queued_ns"] - start, request["scheduled_ns"] - start) == (start, 5 * US, MS)
    assert (request["queue_ns"], request["prefill_wall_ns"], request["decode_wall_ns"]) == (995 * US, 2 * MS, 2 * MS)
    assert tokens == [(0, start + 3 * MS), (1, start + 4 * MS), (2, start + 5 * MS)]
    assert roles == {"trace", "ledger", "requests"}


def test_a_ledger_without_a_trace_still_makes_steps(tmp_path: Path) -> None:
    folder = served().write(tmp_path / "run")
    for path in (folder / "trace").iterdir():
        path.unlink()
    _, store = ingested(tmp_path, folder)
    with store:
        assert store.query("SELECT kind, source, busy_ns FROM steps ORDER BY seq").rows() == [
            ("prefill", "ledger", None), ("prefill", "ledger", None), ("decode", "ledger", None), ("decode", "ledger", None),
        ]  # fmt: skip
        assert store.table("kernels").height == 0
        assert store.table("devices").height == 0
        assert store.table("requests").height == 1


def test_a_directory_of_ranks_is_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        trace(rank=rank, world_size=3, name=f"k{rank}").write(tmp_path / "dir" / f"rank{rank}.pt.trace.json.gz")
    _, store = ingested(tmp_path, tmp_path / "dir")
    with store:
        assert store.query("SELECT rank, count(*) FROM kernels GROUP BY rank ORDER BY rank").rows() == [
            (0, 1),
            (1, 1),
            (2, 1),
        ]
        assert store.query("SELECT rank, seq, n_kernels FROM steps ORDER BY rank").rows() == [
            (0, 0, 1),
            (1, 0, 1),
            (2, 0, 1),
        ]
        assert store.table("runs").height == 1


def test_ranks_from_file_names(tmp_path: Path) -> None:
    for rank in range(2):
        plain = TraceBuilder().label(MS, 50 * US, DECODE).launched(MS + US, MS + 10 * US, (20 + rank) * US, 1)
        plain.write(tmp_path / "dir" / f"17-TP-{rank}.trace.json.gz")
    _, store = ingested(tmp_path, tmp_path / "dir")
    with store:
        assert sorted(store.table("kernels")["rank"]) == [0, 1]


def test_what_is_no_run_beside_one_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "dir"
    trace().write(folder / "rank0.json")
    trace(name="warm").write(folder / "graph_capture_rank_0.json")
    trace(name="http").write(folder / "host.async_llm.json")
    report, store = ingested(tmp_path, folder)
    with store:
        assert set(store.table("kernels")["name"]) == {"gemm"}
    assert {name: why.split(":")[0] for name, why in report.skipped} == {
        "graph_capture_rank_0.json": "is a graph-capture trace, not a run",
        "host.async_llm.json": "is the front end's trace",
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [("graph_capture_rank_0.json", "graph-capture trace"), ("host.async_llm.json", "front end's trace")],
)
def test_what_is_no_run_alone_is_named(name: str, words: str, tmp_path: Path) -> None:
    path = trace().write(tmp_path / name)
    with pytest.raises(NothingToAnalyze, match=words) as caught:
        ingested(tmp_path, path)
    assert "rank*.pt.trace.json.gz" in caught.value.hint
    assert not (tmp_path / "out.duckdb").exists()


def test_two_run_directories_at_once_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        served().write(tmp_path / "runs" / name)
    with pytest.raises(UsageProblem, match="holds 2 run directories"):
        ingested(tmp_path, tmp_path / "runs")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', "\x00"])
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    folder = served().write(tmp_path / "run")
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UnreadableInput, match="is not a manifest"):
        ingested(tmp_path, folder)


def test_a_trace_cut_anywhere_keeps_its_complete_events(tmp_path: Path) -> None:
    builder = TraceBuilder(rank=0)
    for step in range(5):
        builder.label(step * MS, 500 * US, DECODE).launched(step * MS + US, step * MS + 10 * US, 20 * US, step + 1)
    text = builder.text()
    for share in (0.4, 0.7, 0.9):
        path = tmp_path / f"cut{share}.json"
        path.write_text(text[: int(len(text) * share)])
        report = ingest_once([str(path)], tmp_path / f"{share}.duckdb", IngestOptions())
        whole = sum(text[: int(len(text) * share)].count(f"{event}") for event in builder.events)
        assert report.files[0].events == whole
        assert report.files[0].truncated


def test_the_environment_of_a_trace_stays_out(tmp_path: Path) -> None:
    """Host names, users and paths of a foreign recording are not copied into the database."""
    path = trace(hostname="secret-host", traceName="/home/secret/x.json", PYTORCH_ENV="secret").write(
        tmp_path / "t.json"
    )
    _, store = ingested(tmp_path, path)
    with store:
        config = str(store.table("runs")["config"][0])
    assert "secret" not in config
    assert b"secret" not in (tmp_path / "out.duckdb").read_bytes()


def test_facts_of_a_trace(tmp_path: Path) -> None:
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}]
    path = trace(base_ns=1_700_000_000 * 10**9, deviceProperties=properties, vllm_version="0.20.1").write(
        tmp_path / "t.json"
    )
    _, store = ingested(tmp_path, path)
    with store:
        (run,) = store.table("runs").to_dicts()
        (device,) = store.table("devices").to_dicts()
    assert (run["engine"], run["engine_version"], run["device_kind"], run["clock"]) == (
        "vllm",
        "0.20.1",
        "cuda",
        "epoch",
    )
    assert (device["name"], device["vendor"], device["memory_bytes"]) == (
        "NVIDIA H100 80GB HBM3",
        "nvidia",
        85_000_000_000,
    )
    assert json.loads(run["config"])["vllm_version"] == "0.20.1"


@pytest.mark.parametrize(
    ("paths", "target"),
    [
        (["a/t.json.gz"], "t.duckdb"),
        (["rank0.123.pt.trace.json.gz"], "rank0.123.duckdb"),
        (["traces/"], "traces.duckdb"),
        (["export.sqlite"], "export.duckdb"),
        (["x-*.json", "y.json"], "x-.duckdb"),
    ],
)
def test_where_a_run_goes_by_itself(paths: list[str], target: str) -> None:
    assert default_target(paths) == Path(target)


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_folders_without_a_name_of_their_own(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    expected = {".": "inner.duckdb", "..": f"{tmp_path.name}.duckdb", "/": "run.duckdb"}
    assert default_target([path]) == Path(expected[path])
