"""The ledger reader against literals, a naive twin, and files torn at every byte."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput
from traces.readers import schedule
from traces.readers.base import ReadOptions, ReadReport
from traces.readers.schedule import ScheduleReader
from traces.readers.staging import LOG_TABLES

TABLES = ("ledger_steps", "ledger_rows", "ledger_requests", "ledger_marks")


class Collected:
    """A sink in memory that checks schemas."""

    def __init__(self) -> None:
        self.parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}

    def append(self, table: str, data: pa.Table) -> None:
        assert data.schema == LOG_TABLES[table]
        self.parts[table].append(data)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        parts = self.parts[table]
        return [] if not parts else pl.from_arrow(pa.concat_tables(parts)).select(columns).rows()


def step(seq: int, rows: list[tuple[str, int, int, bool]], **more: Any) -> dict[str, Any]:
    """A step whose rows are (request, new tokens, computed before, first)."""
    ids, new, computed, first = ([row[i] for row in rows] for i in range(4))
    n = len(rows)
    return {
        "kind": "step", "seq": seq, "t0": 100 * seq, "t1": 100 * seq + 5, "m0": seq, "total": sum(new), "running": n,
        "waiting": 0, "kv": 0.5, "ids": ids, "new": new, "computed": computed, "prompts": [20] * n, "out": [0] * n,
        "spec": [0] * n, "first": first, "resumed": [False] * n, **more,
    }  # fmt: skip


def result(seq: int, tokens: dict[str, int], done: dict[str, tuple[str, int]] | None = None) -> dict[str, Any]:
    done = done or {}
    return {
        "kind": "result", "seq": seq, "r0": 100 * seq + 50, "r1": 100 * seq + 60, "ids": list(tokens),
        "acc": list(tokens.values()), "done": list(done), "reason": [v[0] for v in done.values()],
        "done_out": [v[1] for v in done.values()],
    }  # fmt: skip


HEADER = {"kind": "header", "pid": 77, "ts": 5, "block_size": 16, "model": {"hidden_size": 8}}
QUEUED = {"kind": "request", "event": "queued", "id": "a", "ts": 90, "session": "S", "prompt": 20, "arrival": 80}
LEDGER = [
    HEADER,
    QUEUED,
    {"kind": "mark", "mark": "profile_start_end", "ts": 95, "value": None, "text": None},
    step(1, [("a", 16, 4, True)]),
    result(1, {}),
    step(2, [("a", 1, 20, False), ("b", 8, 0, True)]),
    result(2, {"a": 1, "b": 1}, {"a": ("stop", 3)}),
    step(3, [("b", 4, 8, False)], spec=[3]),
    {"kind": "aborted", "ids": ["b"], "out": [1], "ts": 350},
    {"kind": "mark", "mark": "error", "ts": 360, "value": 2, "text": "schedule: x"},
]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    return path


def read(path: Path) -> tuple[Collected, ReadReport]:
    sink = Collected()
    return sink, ScheduleReader().read(path, 4, sink, ReadOptions())


def test_all_tables_of_a_small_ledger(tmp_path: Path) -> None:
    sink, report = read(write(tmp_path / "12.jsonl", LEDGER))
    steps = sorted(sink.rows("ledger_steps", *LOG_TABLES["ledger_steps"].names), key=lambda row: row[2])
    assert steps == [
        (4, 77, 1, 100, 105, 150, 160, 1, 16, 1, 0, 0.5),
        (4, 77, 2, 200, 205, 250, 260, 2, 9, 2, 0, 0.5),
        (4, 77, 3, 300, 305, None, None, 3, 4, 1, 0, 0.5),
    ]
    rows = sorted(sink.rows("ledger_rows", *LOG_TABLES["ledger_rows"].names), key=lambda row: (row[2], row[3]))
    assert rows == [
        (4, 77, 1, "a", 16, 4, 20, 0, 0, 0, True, False),  # a result without output for it: 0 tokens
        (4, 77, 2, "a", 1, 20, 20, 0, 0, 1, False, False),
        (4, 77, 2, "b", 8, 0, 20, 0, 0, 1, True, False),
        (4, 77, 3, "b", 4, 8, 20, 0, 3, None, False, False),  # no result: unknown
    ]
    columns = ("engine_request_id", "event", "ts_ns", "session_id", "prompt_tokens", "output_tokens", "cached_tokens",
               "arrival_ns", "reason")  # fmt: skip
    assert sorted(sink.rows("ledger_requests", *columns), key=lambda row: (row[2], row[0])) == [
        ("a", "queued", 90, "S", 20, None, None, 80, None),
        ("a", "scheduled", 100, None, 20, None, 4, None, None),
        ("b", "scheduled", 200, None, 20, None, 0, None, None),
        ("a", "finished", 260, None, None, 3, None, None, "stop"),
        ("b", "finished", 350, None, None, 1, None, None, "abort"),
    ]
    marks = sink.rows("ledger_marks", "kind", "ts_ns", "value", "text")
    assert [mark[:3] for mark in marks] == [
        ("header", 5, None), ("profile_start_end", 95, None), ("error", 360, 2)
    ]  # fmt: skip
    assert json.loads(marks[0][3]) == HEADER
    assert (report.events, report.dropped, report.truncated) == (10, {}, None)
    assert report.meta["header"] == HEADER
    assert report.sha256 is not None and report.bytes_read == (tmp_path / "12.jsonl").stat().st_size


def test_pid_comes_from_the_name_where_no_header_was_written(tmp_path: Path) -> None:
    sink, _ = read(write(tmp_path / "4711.jsonl", [step(0, [("a", 1, 0, True)])]))
    assert sink.rows("ledger_steps", "pid") == [(4711,)]


def test_results_are_joined_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "1.jsonl", LEDGER)
    whole, _ = read(path)
    monkeypatch.setattr(schedule, "BLOCK_BYTES", 64)
    pieces, _ = read(path)
    for table in TABLES:
        names = LOG_TABLES[table].names
        assert sorted(map(str, pieces.rows(table, *names))) == sorted(map(str, whole.rows(table, *names)))


@pytest.mark.parametrize(
    ("damage", "dropped"),
    [
        (b"\x00\x00\x00\n", {"torn line": 1}),
        (b'{"kind":"step","seq":9,"ids":["a"\n', {"torn line": 1}),
        (b'{"kind":"header","pid":3,"model":{"a":1}\n', {"torn line": 1}),
        (b"\xff\xfe\n", {"torn line": 1}),
        (b"garbage\ngarbage\n\n", {"torn line": 2}),
        (b"[1,2]\n", {"not a record": 1}),
        (b'{"kind":"step","seq":9,"ids":["a","b"],"new":[1],"first":[true]}\n', {}),
        (b'{"kind":"step","seq":null}\n', {}),
    ],
)
def test_damage_in_the_middle_costs_only_itself(tmp_path: Path, damage: bytes, dropped: dict[str, int]) -> None:
    path = write(tmp_path / "1.jsonl", LEDGER)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], damage, *lines[5:]]))
    sink, report = read(path)
    assert report.dropped == dropped
    known = [row for row in sink.rows("ledger_rows", "seq", "engine_request_id") if row[0] != 9]
    assert sorted(known) == [(1, "a"), (2, "a"), (2, "b"), (3, "b")]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_prefix_gives_exactly_its_complete_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = write(tmp_path_factory.mktemp("ledger") / "1.jsonl", LEDGER)
    content = path.read_bytes()
    cut = data.draw(st.integers(min_value=len(content.splitlines()[0]) + 1, max_value=len(content)))
    path.write_bytes(content[:cut])
    _, report = read(path)
    naive = 0
    for line in content[:cut].split(b"\n"):
        with contextlib.suppress(ValueError):
            naive += isinstance(json.loads(line), dict)
    assert report.events == naive
    torn = content[:cut].split(b"\n")[-1]
    assert (report.truncated is not None) == (bool(torn) and naive == content[:cut].count(b"\n"))


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"kind":"st', b"nothing\nhere\n"])
def test_nothing_to_keep_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput):
        read(path)


def test_sniff_takes_ledgers_only() -> None:
    reader = ScheduleReader()
    assert reader.sniff(Path("x"), b'{"kind":"header","pid":1')
    assert not reader.sniff(Path("1.jsonl"), b'{"stepscope_request":1')
    assert not reader.sniff(Path("1.jsonl"), b'{"kind":"other"}')
