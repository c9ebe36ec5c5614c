"""`requests`: a request's wall time in parts that sum to it, from runs made of literals. Times in the tests are ms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_run import MS, Run, alone

from analyzers.report.requests_text import request_lines, requests_lines
from analyzers.requests import PARTS, RequestsReport, Selection, divide, fill, read_requests
from traces.errors import NothingToAnalyze, UsageProblem
from traces.store import TraceStore, schema_sql

STEPSCOPE = [sys.executable, "-c", "from cli import main; main()"]


def ms(ns: int | None) -> float | None:
    return None if ns is None else ns / MS


def assert_sum(row: dict[str, Any]) -> None:
    """Parts sum to the wall time to the nanosecond, and none is negative."""
    if row["decode_ns"] is None:
        assert row["why"] is not None
        return
    for prefix, wall in (("", row["e2e_ns"]), ("ttft_", row["ttft_ns"])):
        parts = [row[f"{prefix}{part}_ns"] for part in PARTS]
        if wall is not None:
            assert sum(part or 0 for part in parts) == wall
            assert all(part is None or part >= 0 for part in parts)


def report_of(run: Run, **selection: Any) -> RequestsReport:
    with TraceStore.open(run.ingest()) as store:
        return read_requests(store, Selection(**selection))


def parts_of(run: Run) -> dict[str, dict[str, float | None]]:
    """By request: the parts in ms, 'why', and those up to the first token as 'ttft_<part>'."""
    report = report_of(run, slowest=100)
    found: dict[str, dict[str, float | None]] = {}
    for row in report.requests:
        assert_sum(row)
        found[row["client_request_id"]] = {part: ms(row[f"{part}_ns"]) for part in PARTS} | {
            **{f"ttft_{part}": ms(row[f"ttft_{part}_ns"]) for part in PARTS}, "e2e": ms(row["e2e_ns"]),
        }  # fmt: skip
    return found


def named(parts: dict[str, float | None], prefix: str = "") -> dict[str, float | None]:
    """The parts that are not 0."""
    return {part: parts[f"{prefix}{part}"] for part in PARTS if parts[f"{prefix}{part}"] != 0}


def test_a_request_alone(tmp_path: Path) -> None:
    a = parts_of(alone(Run(tmp_path)))["a"]
    assert a["e2e"] == 26
    assert named(a) == {"frontend": 2, "queue": 3, "prefill": 10, "decode": 8, "gap": 1, "stream": 2}
    assert named(a, "ttft_") == {"frontend": 2, "queue": 3, "prefill": 10, "stream": 2}


def test_chunked_prefill_beside_a_decode_is_interference(tmp_path: Path) -> None:
    run = alone(Run(tmp_path))
    run.request("b", 30, queued=31, end=70, tokens=(42, 47, 57, 64, 69)).request(
        "c", 40, queued=44, end=66, tokens=(64,), prompt=96
    )
    run.step(32, 40, b=(64, 0, 1)).step(41, 45, b=(1, 64, 1))
    run.step(46, 55, b=(1, 65, 1), c=(32, 0, 0))  # 9 ms, of which a lone decode step takes 4
    run.step(55, 63, b=(1, 66, 1), c=(64, 32, 1)).step(63, 67, b=(1, 67, 1))
    parts = parts_of(run)
    assert named(parts["b"]) == {
        "frontend": 1, "queue": 1, "prefill": 8, "decode": 16, "interference": 5 + 4, "gap": 2, "stream": 2,
    }  # fmt: skip
    assert named(parts["c"]) == {"frontend": 4, "queue": 2, "prefill": 17, "stream": 1}


def test_steps_without_the_request_are_interference_if_they_held_a_prefill_else_queueing(tmp_path: Path) -> None:
    run = alone(Run(tmp_path))
    run.request("b", 30, queued=30, end=62, tokens=(61,)).request("c", 30, queued=30, end=62, tokens=(40, 50, 61))
    run.step(30, 40, b=(32, 0, 0), c=(64, 0, 1)).step(41, 44, c=(1, 64, 1))
    run.request("d", 30, queued=30, end=62, tokens=(50,)).step(44, 50, d=(64, 0, 1)).step(
        51, 60, b=(32, 32, 1), c=(1, 65, 1)
    )
    b = parts_of(run)["b"]
    assert named(b) == {"prefill": 10 + 9, "queue": 3, "interference": 6, "gap": 2, "stream": 1}


def test_a_preempted_request(tmp_path: Path) -> None:
    run = alone(Run(tmp_path))
    run.request("b", 30, queued=30, end=81, tokens=(41, 46, 76, 81)).request(
        "c", 30, queued=30, end=61, tokens=(41, 46, 52, 60)
    )
    run.step(30, 40, b=(64, 0, 1), c=(64, 0, 1)).step(41, 45, b=(1, 64, 1), c=(1, 64, 1))
    run.preempted("b", 47.5).step(47, 51, c=(1, 65, 1)).step(52, 56, c=(1, 66, 1))
    run.step(65, 75, b=(66, 0, 1), resumed=("b",)).step(75, 80, b=(1, 66, 1))
    report = report_of(run, request_id="b")
    (row,) = report.requests
    assert_sum(row)
    assert {part: row[f"{part}_ns"] / MS for part in PARTS if row[f"{part}_ns"]} == {
        "prefill": 20, "decode": 9, "preempted": 65 - 47, "gap": 1 + 2, "stream": 1,
    }  # fmt: skip
    assert (row["n_preemptions"], row["recompute_ns"]) == (1, 10 * MS)
    assert any("preempted 1 times" in line for line in request_lines(report))


def test_requests_that_did_not_end_well(tmp_path: Path) -> None:
    run = alone(Run(tmp_path))
    run.request("running", 30, queued=31, end=43, tokens=(41,), status="aborted")
    run.request("waiting", 30, queued=32, end=50, status="aborted", output_tokens=None)
    run.request("refused", 30, end=33, status="error", error="HTTP 400: too long", output_tokens=None)
    run.request("lost", 30, queued=30, end=60, tokens=(41,), status="aborted")
    run.step(31, 40, running=(64, 0, 1), lost=(64, 0, 1)).preempted("lost", 41).step(41, 45, running=(1, 64, 1))
    parts = parts_of(run)
    assert named(parts["running"]) == {"frontend": 1, "prefill": 9, "gap": 1, "decode": 2}
    assert named(parts["waiting"]) == {"frontend": 2, "queue": 18}
    assert named(parts["refused"]) == {"frontend": 3}
    assert named(parts["lost"]) == {"queue": 1, "prefill": 9, "gap": 1, "preempted": 19}
    report = report_of(run)
    assert [row["n"] for row in report.terms] == [1, 1]  # only what ended well is compared


def test_no_output_token_and_one(tmp_path: Path) -> None:
    run = alone(Run(tmp_path))
    run.request("none", 30, queued=31, end=43).request("one", 30, queued=31, end=46, tokens=(44,))
    run.step(32, 42, none=(64, 0, 0), one=(64, 0, 1))
    report = report_of(run, slowest=9)
    rows = {row["client_request_id"]: row for row in report.requests}
    for row in rows.values():
        assert_sum(row)
    none, one = rows["none"], rows["one"]
    assert (none["e2e_ns"], none["ttft_ns"], none["tpot_ns"], none["itl_n"]) == (13 * MS, None, None, 0)
    assert (one["e2e_ns"], one["ttft_ns"], one["tpot_ns"], one["itl_n"]) == (14 * MS, 14 * MS, None, 0)
    assert (none["stream_ns"], one["stream_ns"], none["prefill_ns"]) == (MS, 2 * MS, 10 * MS)
    text = "\n".join(requests_lines(report))
    assert "TTFT" in text and max(len(line) for line in text.splitlines()) <= 100


def test_asynchronous_scheduling_counts_no_time_twice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request("a", 0, queued=0, end=31, tokens=(11, 21, 31)).request("b", 0, queued=5, end=22, tokens=(21,))
    run.step(0, 10, a=(64, 0, 1)).step(6, 20, a=(1, 64, 1), b=(64, 0, 1)).step(12, 30, a=(1, 65, 1))
    run.step(22, 40, a=(1, 66, 0))  # scheduled ahead for a request that had ended
    parts = parts_of(run)
    assert parts["a"]["e2e"] == 31 and parts["a"]["stream"] == 1
    assert named(parts["a"]) == {
        "prefill": 10,
        "decode": 20,
        "stream": 1,
    }  # the mixed step is no longer than a decode one
    assert named(parts["b"]) == {"frontend": 5, "queue": 5, "prefill": 10, "stream": 1}


def test_pipeline_stages_work_side_by_side(tmp_path: Path) -> None:
    run = Run(tmp_path, pipeline_parallel_size=2)
    run.request("a", 0, queued=0, end=21, tokens=(11, 21)).request("b", 0, queued=0, end=26, tokens=(16, 26))
    run.step(0, 10, a=(64, 0, 1)).step(5, 15, b=(64, 0, 1)).step(10, 20, a=(1, 64, 1)).step(15, 25, b=(1, 64, 1))
    parts = parts_of(run)
    assert named(parts["a"]) == {"prefill": 10, "decode": 10, "stream": 1}
    assert named(parts["b"]) == {"queue": 5, "prefill": 10, "decode": 10, "stream": 1}


def test_without_a_decode_only_step_interference_is_unknown_and_said(tmp_path: Path) -> None:
    run = (
        Run(tmp_path).request("a", 0, queued=0, end=21, tokens=(10, 21)).request("b", 0, queued=9, end=21, tokens=(21,))
    )
    run.step(0, 10, a=(64, 0, 1)).step(10, 20, a=(1, 64, 1), b=(64, 0, 1))
    report = report_of(run)
    rows = {row["client_request_id"]: row for row in report.requests}
    assert rows["a"]["interference_ns"] is None and rows["a"]["decode_ns"] == 10 * MS
    assert rows["b"]["interference_ns"] == 0
    assert report.unknown == {"no decode-only step": 1}
    assert any(line.startswith("waiting for others not known for 1 request") for line in requests_lines(report))


def test_where_interference_is_unknown_steps_of_others_are_waited_for_in_the_queue(tmp_path: Path) -> None:
    run = Run(tmp_path).request("a", 0, queued=0, end=31, tokens=(10, 31))
    run.request("b", 0, queued=0, end=31, tokens=(31,), prompt=96)
    run.step(0, 10, a=(64, 0, 1)).step(10, 18, b=(64, 0, 0)).step(18, 30, a=(1, 64, 1), b=(32, 64, 1))
    a = parts_of(run)["a"]
    assert named(a) == {"prefill": 10, "interference": None, "queue": 8, "decode": 12, "stream": 1}


def test_a_ledger_that_ends_early_gives_no_parts(tmp_path: Path) -> None:
    run = (
        alone(Run(tmp_path))
        .request("b", 30, queued=31, end=60, tokens=(41, 50, 60))
        .step(31, 40, b=(64, 0, 1))
        .step(41, None, b=(1, 64, 1))
    )
    report = report_of(run, slowest=9)
    rows = {row["client_request_id"]: row for row in report.requests}
    assert rows["a"]["decode_ns"] == 8 * MS
    assert [rows["b"][f"{part}_ns"] for part in PARTS] == [None] * len(PARTS) and rows["b"]["e2e_ns"] == 30 * MS
    assert report.unknown == {"ledger incomplete": 1}


def test_without_a_ledger_latency_is_known_and_parts_are_not(tmp_path: Path) -> None:
    report = report_of(Run(tmp_path).request("a", 0, end=21, tokens=(10, 21)))
    assert report.unknown == {"no step ledger": 1} and report.terms == [] and report.parts == []
    assert {row["term"]: row["p50_ns"] for row in report.latency} == {
        "ttft": 10 * MS,
        "tpot": 11 * MS,
        "itl": 11 * MS,
        "e2e": 21 * MS,
    }
    assert report.requests[0]["prefill_ns"] is None
    assert "no step ledger" in requests_lines(report)[-1]


def crowd(run: Run, slow_queue: float = 40) -> Run:
    """Ten requests alike, one after another; the last one waits in the queue."""
    for number in range(10):
        start = 100 * number
        first = start + (slow_queue if number == 9 else 1)
        run.request(f"r{number}", start, queued=start, end=first + 16, tokens=(first + 11, first + 15))
        run.step(first, first + 10, **{f"r{number}": (64, 0, 1)}).step(
            first + 10, first + 14, **{f"r{number}": (1, 64, 1)}
        )
    return run


def test_what_makes_the_slow_ones_slow(tmp_path: Path) -> None:
    report = report_of(crowd(Run(tmp_path)))
    e2e = next(row for row in report.terms if row["term"] == "e2e")
    assert (e2e["n"], e2e["slow"], e2e["middle"]) == (10, 1, 2)
    assert (e2e["p50_ns"], e2e["slow_wall_ns"], e2e["middle_wall_ns"]) == (16 * MS, 55 * MS, 16 * MS)
    assert e2e["p99_ns"] == pytest.approx((16 + 0.91 * 39) * MS)
    parts = {row["part"]: row for row in report.parts if row["term"] == "e2e"}
    assert list(parts) == list(PARTS)
    assert parts["queue"]["share"] == pytest.approx(1) and parts["queue"]["difference_ns"] == 39 * MS
    assert parts["prefill"]["total_ns"] == 100 * MS
    for term in report.terms:
        rows = [row for row in report.parts if row["term"] == term["term"]]
        assert sum(row["slow_ns"] for row in rows) == term["slow_wall_ns"]
        assert sum(row["middle_ns"] for row in rows) == term["middle_wall_ns"]
    lines = requests_lines(report)
    assert any("all the queue" in line for line in lines)
    assert max(len(line) for line in lines) <= 100
    assert report.requests[0]["client_request_id"] == "r9" and len(report.requests) == 5


def test_requests_alike_need_no_explanation(tmp_path: Path) -> None:
    assert any("no slower" in line for line in requests_lines(report_of(crowd(Run(tmp_path), slow_queue=1))))


def test_selection(tmp_path: Path) -> None:
    run = (
        alone(Run(tmp_path))
        .request("p", 30, queued=31, end=45, tokens=(44,), **{"pass": "profiled"})
        .step(32, 42, p=(64, 0, 1))
    )
    target = run.ingest()
    with TraceStore.open(target) as store:
        chosen = {
            name: read_requests(store, Selection(pass_name=name)) for name in (None, "control", "profiled", "all")
        }
        by_id = [read_requests(store, Selection(request_id=name)).requests for name in ("p", "chatcmpl-p-0123abcd")]
        with pytest.raises(UsageProblem, match="no request zzz"):
            read_requests(store, Selection(request_id="zzz"))
        with pytest.raises(NothingToAnalyze, match="no warmup pass"):
            read_requests(store, Selection(pass_name="warmup"))
    listed = {name: [row["client_request_id"] for row in report.requests] for name, report in chosen.items()}
    assert listed == {None: ["a"], "control": ["a"], "profiled": ["p"], "all": ["a", "p"]}
    assert [[row["client_request_id"] for row in rows] for rows in by_id] == [["p"], ["p"]]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STEPSCOPE, "requests", *arguments], capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    target = str(alone(Run(tmp_path)).ingest())
    shown = command(target, "--slowest", "1")
    assert (shown.returncode, shown.stderr) == (0, "") and "what makes the slow ones slow" in shown.stdout
    data = json.loads(command(target, "--id", "a", "--json").stdout)
    assert data["version"] == 1 and data["pass_name"] == "control"
    assert sum(data["requests"][0][f"{part}_ns"] for part in PARTS) == data["requests"][0]["e2e_ns"] == 26 * MS
    assert command(target, "--id", "zzz").returncode == 2
    assert command(target, "--id", "a", "--slowest", "2").returncode == 2
    with duckdb.connect(target) as con:
        con.execute("DELETE FROM requests")
    empty = command(target)
    assert (empty.returncode, empty.stdout) == (5, "") and empty.stderr.startswith(
        "error: the run has no requests\nhint: "
    )


def database() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(schema_sql())
    con.execute("INSERT INTO runs (run_id, window_start_ns, window_end_ns) VALUES ('r', 40, 90)")
    return con


def test_device_time_sums_by_phase_and_is_unknown_where_a_part_is(tmp_path: Path) -> None:
    con = database()
    con.executemany(
        "INSERT INTO requests (run_id, request_id, prefill_device_ns) VALUES ('r', ?, 99)", [["a"], ["b"], ["c"], ["d"]]
    )
    con.executemany(
        "INSERT INTO step_requests (run_id, rank, step_id, request_id, phase, device_ns) VALUES ('r', ?, ?, ?, ?, ?)",
        [
            [0, 1, "a", "prefill", 10], [0, 2, "a", "recompute", 5], [0, 3, "a", "decode", 2], [1, 3, "a", "verify", 3],
            [0, 1, "b", "prefill", None], [0, 2, "b", "decode", 4], [0, 4, "c", "decode", 0],
        ],
    )  # fmt: skip
    fill(con, "r")
    rows = con.execute("SELECT request_id, prefill_device_ns, decode_device_ns FROM requests ORDER BY 1").fetchall()
    assert rows == [("a", 15, 5), ("b", None, 4), ("c", None, 0), ("d", None, None)]


def test_what_decodes_take_alone_comes_from_the_nearest_steps_recorded_alike() -> None:
    con = database()  # its window is [40, 90) ns
    steps = [  # pass, start, end, decode rows, prefill rows
        ("warmup", 0, 9, 3, 0), ("control", 10, 12, 2, 0), ("control", 12, 13, 2, 0), ("control", 13, 16, 2, 0),
        ("control", 20, 28, 4, 0), ("control", 30, 39, 3, 1), ("profiled", 40, 47, 1, 0), ("profiled", 50, 60, 4, 2),
        ("profiled", 90, 95, 5, 1),
    ]  # fmt: skip
    for seq, (name, start, end, decodes, prefills) in enumerate(steps):
        con.execute(
            "INSERT INTO ledger_steps (run_id, pid, pass, seq, sched_start_ns, sched_end_ns, result_end_ns) "
            "VALUES ('r', 7, ?, ?, ?, ?, ?)",
            [name, seq, start, start, end],
        )
        con.execute(
            "INSERT INTO ledger_rows SELECT 'r', 7, $seq, i || '-' || $seq, 1, "
            "CASE WHEN i < $decodes THEN 64 ELSE 0 END, 64, 0, 0, 1, true, false FROM range($rows) AS t(i)",
            {"seq": seq, "decodes": decodes, "rows": decodes + prefills},
        )
    divide(con, "r")
    alone_ns = con.execute("SELECT seq, alone_ns FROM request_step WHERE prefill_rows > 0 ORDER BY seq").fetchall()
    assert alone_ns == [
        (5, 2),
        (7, 7),
        (8, 8),
    ]  # of two at the same distance the smaller; the window's own; the largest


SHARED = database()
_time = st.integers(0, 120)
_life = st.tuples(_time, _time, _time, _time, st.sampled_from(["ok", "aborted", "error"]), st.integers(0, 2))
_row = st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 60), st.integers(0, 2), st.booleans())
_step = st.tuples(
    st.integers(0, 12), st.none() | st.integers(0, 25), st.lists(_row, min_size=1, max_size=4, unique_by=lambda r: r[0])
)


@settings(max_examples=30, deadline=None)
@given(
    lives=st.lists(_life, min_size=1, max_size=4),
    steps=st.lists(_step, min_size=1, max_size=12),
    stages=st.integers(1, 2),
)
def test_parts_sum_to_the_wall_time_whatever_the_ledger_says(
    lives: list[tuple[int, int, int, int, str, int]],
    steps: list[tuple[int, int | None, list[tuple[int, int, int, int, bool]]]],
    stages: int,
) -> None:
    con = SHARED
    for table in ("requests", "ledger_steps", "ledger_rows", "ledger_marks"):
        con.execute(f"DELETE FROM {table}")
    con.execute(
        "INSERT INTO ledger_marks VALUES ('r', 7, 'header', 0, NULL, ?)",
        [json.dumps({"pipeline_parallel_size": stages})],
    )
    for number, (arrival, queued, first, last, status, preemptions) in enumerate(lives):
        con.execute(
            "INSERT INTO requests (run_id, request_id, arrival_ns, queued_ns, first_token_ns, last_token_ns, "
            "finished_ns, status, n_preemptions, output_tokens) VALUES ('r', ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            [str(number), arrival, queued, first, last, last + 3, status, preemptions],
        )
    start = 0
    for seq, (later, took, rows) in enumerate(steps):
        start += later
        con.execute(
            "INSERT INTO ledger_steps (run_id, pid, seq, sched_start_ns, sched_end_ns, result_end_ns) "
            "VALUES ('r', 7, ?, ?, ?, ?)",
            [seq, start, start + 1, None if took is None else start + took],
        )
        for name, new, computed, accepted, resumed in rows:
            con.execute(
                "INSERT INTO ledger_rows VALUES ('r', 7, ?, ?, ?, ?, 50, 0, 0, ?, false, ?)",
                [seq, str(name), new, computed, accepted, resumed],
            )
    divide(con, "r")
    columns = ", ".join(f"{part}_ns" for part in PARTS)
    for wall_ns, why, *parts in con.execute(f"SELECT wall_ns, why, {columns} FROM request_part").fetchall():
        if parts[PARTS.index("decode")] is None:
            assert why == "ends before it arrives"
            continue
        assert sum(part or 0 for part in parts) == wall_ns
        assert all(part is None or part >= 0 for part in parts)
