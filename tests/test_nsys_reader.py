"""The Nsight Systems reader against a naive twin, exports of several shapes, and files that are none."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from traces.errors import NothingToAnalyze, UnreadableInput
from traces.readers import nsys_events
from traces.readers.base import EVENT_COLUMNS, Cat, ReadOptions, ReadReport
from traces.readers.nsys import NsysReader

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "nsys"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="sample recordings are not here")

K, R, N = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
PID, TID = 4711, 4712
GLOBAL_PID = (1 << 48) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID
STRINGS: tuple[str, list[tuple[Any, ...]]] = (
    "id, value",
    [
        (1, "void gemm<float>(int)"),
        (2, "gemm"),
        (3, "cudaLaunchKernel_v7000"),
        (4, "cudaGraphLaunch_ptsz_v10000"),
        (5, "step"),
    ],
)
KERNEL_COLUMNS = 'start, "end", deviceId, streamId, correlationId, globalPid, demangledName, shortName'
RUNTIME_COLUMNS = 'start, "end", eventClass, globalTid, correlationId, nameId'


class Collected:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {"events": [], "strings": []}

    def append(self, table: str, data: pa.Table) -> None:
        self.tables[table].append(data)

    def rows(self) -> list[dict[str, Any]]:
        """Events with their string ids replaced by texts."""
        texts: dict[int, str | None] = {0: None}
        for part in self.tables["strings"]:
            texts |= dict(zip(part["id"].to_pylist(), part["text"].to_pylist(), strict=True))
        rows = [row for part in self.tables["events"] for row in part.to_pylist()]
        return [row | {"name": texts[row["name"]], "shapes": texts[row["shapes"] or 0]} for row in rows]


def export(path: Path, tables: dict[str, tuple[str, list[tuple[Any, ...]]]]) -> Path:
    """An SQLite file with these tables: {name: (columns, rows)}."""
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" for _ in columns.split(", "))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.close()
    return path


def read(path: Path, options: ReadOptions | None = None) -> tuple[ReadReport, list[dict[str, Any]], Collected]:
    sink = Collected()
    report = NsysReader().read(path, 3, sink, options or ReadOptions())
    return report, sink.rows(), sink


def naive(path: Path) -> list[tuple[Any, ...]]:
    """(cat, name, pid, tid, ts, dur, device, stream, raw correlation) of kernels and calls, row by row."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.row_factory = sqlite3.Row
    strings = {row["id"]: row["value"] for row in connection.execute("SELECT * FROM StringIds")}
    found = []
    for row in connection.execute(f"SELECT * FROM {K}"):
        pid = row["globalPid"] >> 24 & 0xFFFFFF if "globalPid" in row.keys() else None  # noqa: SIM118
        found.append((1, strings[row["demangledName"]], pid, None, row["start"], row["end"] - row["start"],
                      row["deviceId"], row["streamId"], row["correlationId"]))  # fmt: skip
    for row in connection.execute(f"SELECT * FROM {R}"):
        driver = "eventClass" in row.keys() and row["eventClass"] == 1  # noqa: SIM118
        name = re.sub(r"(_ptsz)?_v\d+$", "", strings[row["nameId"]])
        found.append((12 if driver else 11, name, row["globalTid"] >> 24 & 0xFFFFFF, row["globalTid"] & 0xFFFFFF,
                      row["start"], row["end"] - row["start"], None, None, row["correlationId"]))  # fmt: skip
    connection.close()
    return sorted(found, key=repr)


@needs_data
@pytest.mark.parametrize("name", ["h100_2gpu_1s", "mock", "healthy_1pct"])
def test_equals_naive_twin(name: str) -> None:
    path = DATA / f"{name}.sqlite"
    _, rows, _ = read(path)
    got = [
        (
            row["cat"],
            row["name"],
            row["pid"],
            row["tid"],
            row["ts"],
            row["dur"],
            row["device"],
            row["stream"],
            row["corr"] & 0xFFFFFFFF,
        )
        for row in rows
        if row["cat"] in (Cat.KERNEL, Cat.RUNTIME, Cat.DRIVER)
    ]
    assert sorted(got, key=repr) == naive(path)


@needs_data
def test_two_processes_two_gpus() -> None:
    path = DATA / "h100_2gpu_1s.sqlite"
    report, rows, sink = read(path)
    assert report.kept[K] == 3442 and report.events == 27388 == len(rows)
    assert report.base_ns == 1779630014975716426 and report.truncated is None
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    kernels = [row for row in rows if row["cat"] == Cat.KERNEL]
    assert {row["device"] for row in kernels} == {0, 1}
    calls = {row["corr"]: row["pid"] for row in rows if row["cat"] in (Cat.RUNTIME, Cat.DRIVER)}
    launched = [row for row in kernels if row["corr"] in calls]
    assert len(launched) == 1632  # the slice begins after the other kernels were launched
    assert all(calls[row["corr"]] == row["pid"] for row in launched)  # never another process's launch
    assert all(part.schema.equals(EVENT_COLUMNS) for part in sink.tables["events"])
    operators = [row for row in rows if row["cat"] == Cat.OP]
    assert len(operators) > 10_000 and len({row["name"] for row in operators}) < 300
    assert not any("op_id" in row["name"] for row in operators)
    assert [row["seq"] for row in rows] == list(range(len(rows)))


@needs_data
def test_environment_is_not_copied() -> None:
    path = DATA / "mock.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    secrets = {row[0] for row in connection.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE length(value) > 6")}
    connection.close()
    report, rows, _ = read(path)
    assert len(secrets) > 10
    written = json.dumps([report.meta, rows])
    texts = [value for value in secrets if json.dumps(value)[1:-1] in written]
    assert [text for text in texts if "3080" not in text] == []  # the GPU's name is no secret
    assert report.meta["deviceProperties"][0]["name"] == "NVIDIA GeForce RTX 3080"
    assert report.meta["deviceProperties"][0]["numSms"] == 68
    assert report.meta["deviceProperties"][0]["totalGlobalMem"] == 10736893952


@needs_data
def test_summary_table_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnreadableInput, match="summary of kernels") as caught:
        read(DATA / "rtx5090_cuda_gpu_kern_sum.csv")
    assert "nsys export --type sqlite" in caught.value.hint


def test_minimal_export(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a ?#x.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, [(100, 150, 0, 7, 9, GLOBAL_PID, 1, 2)])}
    )
    _, rows, _ = read(path)
    assert rows == [
        {"src": 3, "seq": 0, "cat": 1, "name": "void gemm<float>(int)", "pid": PID, "tid": None, "ts": 100, "dur": 50,
         "corr": 9, "ext": None, "device": 0, "stream": 7, "shapes": None, "dtypes": None, "bytes": None, "extra": None}
    ]  # fmt: skip


def test_correlations_of_two_processes_are_kept_apart(tmp_path: Path) -> None:
    other = GLOBAL_PID + (1 << 24)
    kernels = [(100, 150, 0, 7, 9, GLOBAL_PID, 1, 2), (100, 160, 0, 7, 9, other, 1, 2)]
    calls = [(90, 95, 0, GLOBAL_TID, 9, 3), (91, 95, 0, other | 5, 9, 3)]
    path = export(
        tmp_path / "two.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, kernels), R: (RUNTIME_COLUMNS, calls)}
    )
    _, rows, _ = read(path)
    first, second, call, other_call = rows
    assert first["corr"] == call["corr"] != second["corr"] == other_call["corr"]
    assert call["name"] == "cudaLaunchKernel" and (call["pid"], call["tid"]) == (PID, TID)


def test_same_ordinal_in_two_processes_is_two_gpus(tmp_path: Path) -> None:
    other = GLOBAL_PID + (1 << 24)
    tables = {
        "StringIds": STRINGS,
        K: (KERNEL_COLUMNS, [(100, 150, 0, 7, 9, GLOBAL_PID, 1, 2), (100, 160, 0, 7, 9, other, 1, 2)]),
        "TARGET_INFO_CUDA_DEVICE": ("gpuId, cudaId, pid", [(4, 0, PID), (5, 0, PID + 1)]),
        "TARGET_INFO_GPU": ("id, name, totalMemory, smCount", [(4, "X", 8, 2), (5, "X", 8, None)]),
    }
    report, rows, _ = read(export(tmp_path / "visible.sqlite", tables))
    assert [row["device"] for row in rows] == [4, 5]
    assert report.meta["deviceProperties"] == [
        {"id": 4, "name": "X", "totalGlobalMem": 8, "numSms": 2}, {"id": 5, "name": "X", "totalGlobalMem": 8},
    ]  # fmt: skip


def test_whole_graphs_become_kernels_unless_their_nodes_were_recorded(tmp_path: Path) -> None:
    columns = KERNEL_COLUMNS + ", graphNodeId"
    kernels = [(100, 150, 0, 7, 9, GLOBAL_PID, 1, 2, 77), (300, 310, 0, 7, 12, GLOBAL_PID, 1, 2, None)]
    graphs = [
        (100, 200, 0, 7, 9, GLOBAL_PID, 3),
        (400, 500, 0, 7, 10, GLOBAL_PID, 4),
        (600, 610, 0, 7, None, GLOBAL_PID, None),
    ]
    tables = {
        "StringIds": STRINGS,
        K: (columns, kernels),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
            'start, "end", deviceId, streamId, correlationId, globalPid, graphId',
            graphs,
        ),
    }
    report, rows, _ = read(export(tmp_path / "graphs.sqlite", tables))
    assert [(row["name"], row["cat"], row["ts"], row["dur"], row["corr"]) for row in rows[2:]] == [
        ("CUDA graph 4", Cat.KERNEL, 400, 100, 10), ("CUDA graph ?", Cat.KERNEL, 600, 10, None),
    ]  # fmt: skip
    assert report.meta["graph_trace"] == "graph"


def test_copies_sets_and_synchronization_read_like_kineto(tmp_path: Path) -> None:
    tables = {
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            'start, "end", deviceId, streamId, correlationId, globalPid, bytes, copyKind, srcKind, dstKind',
            [(1, 2, 0, 7, 1, GLOBAL_PID, 4096, 1, 1, 2), (3, 4, 0, 7, 2, GLOBAL_PID, None, 99, None, 2)],
        ),
        "CUPTI_ACTIVITY_KIND_MEMSET": ('start, "end", deviceId, streamId, bytes, memKind', [(5, 6, 0, 7, 64, 2)]),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            'start, "end", deviceId, streamId, correlationId, globalPid, syncType, eventId',
            [(7, 9, 0, 8, 3, GLOBAL_PID, 2, 5), (9, 9, 0, 0xFFFFFFFF, 4, GLOBAL_PID, 2, 0xFFFFFFFF)],
        ),
    }
    _, rows, _ = read(export(tmp_path / "copies.sqlite", tables))
    assert [(row["cat"], row["name"], row["stream"], row["bytes"]) for row in rows] == [
        (Cat.MEMCPY, "Memcpy HtoD (Pinned -> Device)", 7, 4096),
        (Cat.MEMCPY, "Memcpy ? (Unknown -> Device)", 7, None),
        (Cat.MEMSET, "Memset (Device)", 7, 64),
        (Cat.SYNC, "Stream Wait Event", 8, None),
        (Cat.SYNC, "Stream Sync", None, None),
    ]


def test_nvtx_ranges(tmp_path: Path) -> None:
    columns = 'start, "end", eventType, text, textId, globalTid, endGlobalTid'
    shapes = "[[8, 4], [], [4, 2]]"
    rows_in = [
        (10, 20, 59, "execute_context_0(0)_generation_2(2)", None, GLOBAL_TID, None),
        (11, 12, 59, None, 5, GLOBAL_TID, None),
        (13, None, 59, "left open", None, GLOBAL_TID, None),
        (
            14,
            15,
            59,
            f"aten::mm, seq = 4, op_id = 71, sizes = {shapes}, input_op_ids = [(1, 0)]",
            None,
            GLOBAL_TID,
            None,
        ),
        (16, 17, 59, "aten::add, op_id = 72", None, GLOBAL_TID, None),
        (18, 30, 60, "crosses threads", None, GLOBAL_TID, GLOBAL_TID + 1),
        (19, None, 34, "a mark", None, GLOBAL_TID, None),
        (20, 21, 75, "domain", None, GLOBAL_TID, None),
        (22, 23, 59, None, None, GLOBAL_TID, None),
        (24, 25, 59, None, 999, GLOBAL_TID, None),
    ]
    report, rows, _ = read(export(tmp_path / "nvtx.sqlite", {"StringIds": STRINGS, N: (columns, rows_in)}))
    assert [(row["cat"], row["name"], row["dur"], row["tid"]) for row in rows] == [
        (Cat.ANNOTATION, "execute_context_0(0)_generation_2(2)", 10, TID),
        (Cat.ANNOTATION, "step", 1, TID),
        (Cat.ANNOTATION, "left open", None, TID),
        (Cat.OP, "aten::mm", 1, TID),
        (Cat.OP, "aten::add", 1, TID),
        (Cat.OTHER, "crosses threads", 12, TID),
        (Cat.INSTANT, "a mark", None, TID),
        (Cat.ANNOTATION, None, 1, TID),
        (Cat.ANNOTATION, None, 1, TID),
    ]
    assert [row["shapes"] for row in rows[3:5]] == [shapes, None]
    assert json.loads(rows[3]["shapes"]) == [[8, 4], [], [4, 2]]
    assert report.meta["nvtx_without_end"] == 2


def test_values_that_no_export_should_hold(tmp_path: Path) -> None:
    name = "k" * 10_000
    strings = ("id, value", [(1, name), (2, b"\xff\xfe"), (3, None), (4, 17)])  # SQLite makes a text of 17
    kernels = [
        (100, 99, 0, 7, 1, GLOBAL_PID, 1, None),  # ends before it starts
        (None, 99, 0, 7, 2, GLOBAL_PID, None, 3),
        ("soon", 1.5, "x", 0xFFFFFFFF, None, None, 2, None),
        (2**62, -(2**62) - 2**61, 0, 7, 4, GLOBAL_PID, 4, None),  # a difference beyond 64 bits
        (5, None, None, None, 5, GLOBAL_PID, 10**12, None),
    ]
    _, rows, _ = read(export(tmp_path / "odd.sqlite", {"StringIds": strings, K: (KERNEL_COLUMNS, kernels)}))
    shown = [(row["name"] and len(row["name"]), row["ts"], row["dur"], row["device"], row["stream"]) for row in rows]
    assert shown == [
        (10_000, 100, -1, 0, 7), (None, None, None, 0, 7), (None, None, None, None, None), (2, 2**62, None, 0, 7),
        (None, 5, None, None, None),
    ]  # fmt: skip


def test_an_export_without_names_keeps_its_events(tmp_path: Path) -> None:
    path = export(
        tmp_path / "nameless.sqlite",
        {K: ('start, "end"', [(1, 4)]), "PROFILER_OVERHEAD": ("start, globalTid", [(2, 3)])},
    )
    _, rows, _ = read(path)
    assert [(row["name"], row["dur"], row["corr"], row["device"]) for row in rows] == [
        (None, 3, None, None),
        (None, None, None, None),
    ]


def test_batches_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [(index, index + 1, 0, 7, index, GLOBAL_PID, 1 + index % 2, None) for index in range(1000)]
    path = export(tmp_path / "many.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, kernels)})
    _, whole, _ = read(path)
    monkeypatch.setattr(nsys_events, "BATCH_ROWS", 7)
    seen: list[tuple[int, int]] = []
    _, parts, sink = read(path, ReadOptions(progress=lambda done, events: seen.append((done, events))))
    assert parts == whole and len(sink.tables["events"]) == 143
    assert seen[-1] == (path.stat().st_size, 1000) and seen == sorted(seen)
    assert sum(part.num_rows for part in sink.tables["strings"]) == 2


def test_texts_that_never_repeat_keep_memory_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 'start, "end", eventType, text, globalTid'
    ranges = [
        (index, index + 1, 59, f"request {index % 40} {'x' * (index % 40 * 10)}", GLOBAL_TID) for index in range(80)
    ]
    path = export(tmp_path / "texts.sqlite", {N: (columns, ranges)})
    monkeypatch.setattr(nsys_events, "_MOST_TEXTS", 8)
    _, rows, sink = read(path)
    assert [row["name"] for row in rows] == [item[3] for item in ranges]
    numbers = [number for part in sink.tables["strings"] for number in part["id"].to_pylist()]
    assert len(numbers) == len(set(numbers)) and min(numbers) == 1


def test_what_is_no_export(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(UnreadableInput, match="is empty"):
        read(empty)
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to be looked at")
    with pytest.raises(UnreadableInput, match="is not an SQLite database"):
        read(text)
    with pytest.raises(UnreadableInput, match="no export of Nsight Systems") as caught:
        read(export(tmp_path / "other.sqlite", {"bookmarks": ("url, title", [("a", "b")])}))
    assert "nsys export" in caught.value.hint
    with pytest.raises(NothingToAnalyze, match="no CUDA activities"):
        read(export(tmp_path / "host.sqlite", {"StringIds": STRINGS}))


def test_views_and_virtual_tables_are_not_run(tmp_path: Path) -> None:
    path = export(tmp_path / "view.sqlite", {"StringIds": STRINGS})
    endless = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start FROM n"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE VIEW {K} AS {endless}")
    connection.close()
    with pytest.raises(NothingToAnalyze):
        read(path)


def test_damaged_files(tmp_path: Path) -> None:
    kernels = [(index, index + 1, 0, 7, index, GLOBAL_PID, 1, None) for index in range(20_000)]
    path = export(tmp_path / "whole.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, kernels)})
    raw = path.read_bytes()
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UnreadableInput, match="is damaged") as caught:
        read(torn)
    assert "export the report again" in caught.value.hint
    headless = tmp_path / "headless.sqlite"
    headless.write_bytes(raw[:100])
    with pytest.raises(UnreadableInput):
        read(headless)
    broken = tmp_path / "broken.sqlite"  # pages in the middle of one table overwritten: the other tables stay
    calls = [(index, index + 1, 0, GLOBAL_TID, index, 3) for index in range(2000)]
    whole = export(
        tmp_path / "both.sqlite", {K: (KERNEL_COLUMNS, kernels), "StringIds": STRINGS, R: (RUNTIME_COLUMNS, calls)}
    )
    data = bytearray(whole.read_bytes())
    data[4096 * 20 : 4096 * 24] = b"\xa5" * (4096 * 4)
    broken.write_bytes(data)
    report, rows, _ = read(broken)
    assert report.truncated is not None and K in report.truncated
    assert len([row for row in rows if row["cat"] == Cat.RUNTIME]) == 2000
    assert len(rows) < 22_000


def test_locked_database_and_unmerged_journal(tmp_path: Path) -> None:
    path = export(
        tmp_path / "locked.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, [(1, 2, 0, 7, 1, GLOBAL_PID, 1, 2)])}
    )
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    _, rows, _ = read(path)
    assert len(rows) == 1
    writer.execute("ROLLBACK")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(f"INSERT INTO {K} VALUES (3, 4, 0, 7, 2, {GLOBAL_PID}, 1, 2)")
    report, rows, _ = read(path)
    assert len(rows) == 1 and report.truncated is not None and "locked.sqlite-wal" in report.truncated
    writer.close()


def test_reading_leaves_no_trace_in_the_folder(tmp_path: Path) -> None:
    path = export(tmp_path / "one.sqlite", {K: ('start, "end"', [(1, 4)])})
    before = path.read_bytes()
    read(path)
    assert path.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["one.sqlite"]


def test_the_reader_may_run_in_another_thread(tmp_path: Path) -> None:
    path = export(tmp_path / "one.sqlite", {K: ('start, "end"', [(1, 4)])})
    found: list[int] = []
    worker = threading.Thread(target=lambda: found.append(read(path)[0].events))
    worker.start()
    worker.join()
    assert found == [1]


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_report_without_nsys_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    path.write_bytes(b"\x00binary")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreadableInput, match="has to be exported first") as caught:
        read(path)
    assert f"nsys export --type sqlite --output {tmp_path}/run.sqlite {path}" in caught.value.hint


def install_nsys(folder: Path, body: str) -> None:
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_report_is_exported_by_an_nsys_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = export(
        tmp_path / "ready.sqlite", {"StringIds": STRINGS, K: (KERNEL_COLUMNS, [(1, 3, 0, 7, 1, GLOBAL_PID, 1, 2)])}
    )
    path = tmp_path / "my run; touch x.nsys-rep"
    path.write_bytes(b"\x00binary")
    tools = tmp_path / "bin"
    tools.mkdir()
    install_nsys(tools, f'echo "$@" > "{tmp_path}/said"; {shutil.which("cp")} "{ready}" "$5"')
    monkeypatch.setenv("PATH", str(tools))
    report, rows, _ = read(path)
    assert [row["name"] for row in rows] == ["void gemm<float>(int)"]
    said = (tmp_path / "said").read_text().strip()
    assert said.startswith("export --type sqlite --output ") and said.endswith(str(path))
    assert report.bytes_read == 7 and report.sha256 == hashlib.sha256(b"\x00binary").hexdigest()
    assert not Path(said.split()[4]).exists() and not (tmp_path / "x").exists()


def test_an_export_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"\x00binary")
    install_nsys(tmp_path, "echo 'Generating' ; echo 'version is too new' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreadableInput, match="version is too new"):
        read(path)


def test_sniff() -> None:
    reader = NsysReader()
    assert reader.sniff(Path("x.bin"), b"SQLite format 3\x00....")
    assert reader.sniff(Path("x.nsys-rep"), b"\x00")
    assert reader.sniff(Path("x.csv"), b"Time (%),Total Time (ns),Instances,Avg (ns)\n")
    assert reader.sniff(Path("x.sqlite"), b"") and reader.sniff(Path("x.sqlite"), b"garbage")
    assert not reader.sniff(Path("x.json"), b'{"traceEvents": []}')
    assert not reader.sniff(Path("x.sqlite"), b'{"traceEvents": []}')
    assert not reader.sniff(Path("x.csv"), b"TIMESTAMP,ContextTokens\n")
