"""The database on disk: all or nothing, appended to, recognised, opened by name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from trace_builder import DECODE, US, RunBuilder, TraceBuilder

from traces.errors import NothingToAnalyze, StepscopeError, UnreadableInput, UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore, table_names, writing

ROOT = Path(__file__).resolve().parents[1]
REPLACE_SIZE_LIMIT = (
    "import resource, runpy, signal, sys\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    "from cli import main\n"
    "main(sys.argv[1:])\n"
)


def small_trace(path: Path, *, name: str = "gemm", steps: int = 2) -> Path:
    trace = TraceBuilder(rank=0)
    for step in range(steps):
        at = 100 * US * (step + 1)
        trace.label(at, 50 * US, DECODE).launched(at + US, at + 10 * US, 20 * US, step + 1, name=name)
    return trace.write(path)


def big_trace(path: Path, *, events: int = 150_000) -> Path:
    """Some 30 MB, so that an ingest can be caught in the middle."""
    trace = TraceBuilder(rank=0)
    for number in range(events // 2):
        at = 10 * US * (number + 1)
        if number % 1000 == 0:
            trace.label(at, 9_000 * US, DECODE)
        trace.launched(at, at + 20 * US, 5 * US, number + 1, name=f"kernel_{number % 97}<{'x' * 60}>")
    return trace.write(path)


def run_ids(path: Path) -> list[str]:
    with duckdb.connect(str(path), read_only=True) as con:
        return [row[0] for row in con.execute("SELECT run_id FROM runs ORDER BY created_ns, rowid").fetchall()]


def leftovers(folder: Path, *known: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path not in known)


def test_a_second_run_is_appended(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    first = ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions(name="first"))
    second = ingest_once([str(small_trace(tmp_path / "b.json", steps=3))], target, IngestOptions())
    assert run_ids(target) == [first.run_id, second.run_id]
    with TraceStore.open(target) as store:  # the newest
        assert store.table("steps").height == 3
    with TraceStore.open(f"{target}#{first.run_id}") as store:
        assert store.table("steps").height == 2
        assert store.table("runs")["name"].to_list() == ["first"]
    assert leftovers(tmp_path) == ["a.json", "b.json", "run.duckdb"]


def test_the_same_content_is_recognised_under_any_name(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    first = ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    before = target.read_bytes()
    again = ingest_once([str(small_trace(tmp_path / "copy.json"))], target, IngestOptions())
    assert (again.already, again.run_id) == (True, first.run_id)
    assert target.read_bytes() == before
    assert leftovers(tmp_path) == ["a.json", "copy.json", "run.duckdb"]


def test_one_content_given_twice_counts_once(tmp_path: Path) -> None:
    paths = [str(small_trace(tmp_path / name)) for name in ("a.json", "b.json")]
    report = ingest_once(paths, tmp_path / "run.duckdb", IngestOptions())
    assert report.skipped == [("b.json", "has the same content as a.json")]
    with TraceStore.open(tmp_path / "run.duckdb") as store:
        assert store.table("kernels").height == 2


def test_run_ids_stay_unique(tmp_path: Path) -> None:
    """A run directory carries its id; two recordings of one id are two runs."""
    target = tmp_path / "all.duckdb"
    for dur in (1_000, 2_000):
        run = RunBuilder().step(0, dur * US, [{"id": "r", "new": 8, "computed": 0, "prompt": 8}])
        ingest_once([str(run.write(tmp_path / f"run{dur}"))], target, IngestOptions())
    assert run_ids(target) == ["abc123", "abc123-2"]


def test_a_failing_block_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    before = target.read_bytes()

    def spoil() -> None:
        with writing(target) as con:
            con.execute("DELETE FROM runs")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()
    assert target.read_bytes() == before
    with pytest.raises(NothingToAnalyze):
        ingest_once([str(TraceBuilder(rank=0).write(tmp_path / "empty.json"))], target, IngestOptions())
    assert target.read_bytes() == before
    assert leftovers(tmp_path) == ["a.json", "empty.json", "run.duckdb"]


def test_a_failing_analysis_leaves_no_database(tmp_path: Path) -> None:
    def finish(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        raise ZeroDivisionError(run_id)

    with pytest.raises(ZeroDivisionError):
        ingest_once([str(small_trace(tmp_path / "a.json"))], tmp_path / "run.duckdb", IngestOptions(finish=finish))
    assert leftovers(tmp_path) == ["a.json"]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return big_trace(tmp_path_factory.mktemp("big") / "big.json")


def interrupt_when(process: subprocess.Popen[str], seen: Path, pattern: str) -> None:
    """Send SIGINT once a file of this pattern is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if any(seen.glob(pattern)):
            process.send_signal(signal.SIGINT)
            return
        time.sleep(0.005)
    process.kill()
    pytest.fail("the ingest never got to where it was to be interrupted")


@pytest.mark.parametrize("delay_s", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_ctrl_c_leaves_nothing_behind(big: Path, tmp_path: Path, delay_s: float) -> None:
    """In the middle of reading, of linking, or later still: no database, no scratch files, exit 130."""
    target = tmp_path / "out" / "run.duckdb"
    command = [sys.executable, "-c", "from cli import main; main()", "ingest", str(big), "-o", str(target), "-q"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob("out/.run.duckdb.stage-*")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    if process.returncode == 130:
        assert errors.strip() == "error: interrupted"  # the terminal shows ^C: a new line first
        assert leftovers(tmp_path / "out") == []
    else:  # it was done before, or just leaving
        assert delay_s and process.returncode in (0, -signal.SIGINT), errors
        assert leftovers(tmp_path / "out") == ["run.duckdb"]
        assert len(run_ids(target)) == 1


def test_ctrl_c_leaves_an_existing_database_alone(big: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    source = small_trace(tmp_path / "a.json")
    ingest_once([str(source)], target, IngestOptions())
    before = target.read_bytes()
    command = [sys.executable, "-c", "from cli import main; main()", "ingest", str(big), "-o", str(target), "-q"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        interrupt_when(process, tmp_path, ".run.duckdb.stage-*")
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert target.read_bytes() == before
    assert leftovers(tmp_path, source, target) == []


@contextlib.contextmanager
def small_disk(folder: Path, *, size: str) -> Iterator[bool]:
    """A tmpfs of this size on `folder`; False where mounting is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True, capture_output=True)


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_a_full_disk_leaves_nothing_behind(big: Path, tmp_path: Path, existing: bool) -> None:
    """A real full disk where one can be mounted, else files that may not grow beyond a limit."""
    folder = tmp_path / "disk"
    with small_disk(folder, size="3m" if not existing else "8m") as mounted:
        target = folder / "run.duckdb"
        before = b""
        if existing:
            ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
            before = target.read_bytes()
        limit = "-1" if mounted else str(len(before) + 2_000_000)
        command = [
            sys.executable,
            "-c",
            REPLACE_SIZE_LIMIT.format(limit=limit),
            "ingest",
            str(big),
            "-o",
            str(target),
            "-q",
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[0] == f"error: the disk is full: cannot write {target}"
        assert done.stderr.splitlines()[1].startswith("hint: ")
        assert done.stdout == ""
        assert leftovers(folder) == (["run.duckdb"] if existing else [])
        if existing:
            assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda path: None, UnreadableInput, "does not exist"),
        (lambda path: path.mkdir(), UnreadableInput, "has no run.duckdb"),
        (lambda path: path.write_text("not a database"), UnreadableInput, "not a readable run database"),
        (lambda path: path.write_bytes(b""), UnreadableInput, "not a readable run database|has no table"),
        (lambda path: duckdb.connect(str(path)).execute("CREATE TABLE t (a INTEGER)").close(), UnreadableInput, "has no table `runs`"),
        (lambda path: duckdb.connect(str(path)).execute("CREATE TABLE runs (a INTEGER)").close(), UnreadableInput, "not a run database"),
    ],
    ids=["missing", "folder", "text", "empty", "other-tables", "other-runs"],
)  # fmt: skip
def test_what_is_no_database_of_ours_is_refused(
    make: object, error: type[StepscopeError], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "thing.duckdb"
    make(path)  # type: ignore[operator]
    with pytest.raises(error, match=words):
        TraceStore.open(path)
    if path.is_file():
        before = path.read_bytes()
        with pytest.raises(UnreadableInput):
            ingest_once([str(small_trace(tmp_path / "a.json"))], path, IngestOptions())
        assert path.read_bytes() == before


def test_an_unknown_run_names_the_known_ones(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    report = ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    with pytest.raises(UsageProblem) as caught:
        TraceStore.open(f"{target}#nope")
    assert report.run_id in caught.value.hint


def test_a_file_may_have_a_hash_in_its_name(tmp_path: Path) -> None:
    target = tmp_path / "run#1.duckdb"
    report = ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    with TraceStore.open(target) as store:
        assert store.run_id == report.run_id


def test_a_read_store_cannot_write_or_reach_files(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    with TraceStore.open(target) as store:
        for statement in (
            "DELETE FROM runs",
            f"SELECT * FROM read_text('{tmp_path / 'a.json'}')",
            f"COPY runs TO '{tmp_path / 'out.csv'}'",
            f"ATTACH '{tmp_path / 'other.duckdb'}'",
            "SET enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                store.connection.execute(statement)
    assert not (tmp_path / "out.csv").exists()


def test_every_table_has_a_run_id_and_is_known(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    with TraceStore.open(target) as store:
        for name in table_names():
            assert "run_id" in store.table(name).columns
        with pytest.raises(UsageProblem, match="unknown table nope"):
            store.table("nope")


NARROW = (
    "SELECT g, sum(x)::BIGINT AS total FROM (SELECT 'g' || (i % 3) AS g, 1000 + i AS x, i AS step FROM range(10000) AS t(i)) "
    "LEFT JOIN (SELECT step_id AS step, kind FROM steps WHERE run_id = 'another') USING (step) WHERE x >= 0 GROUP BY g ORDER BY g"
)


def test_sums_beside_a_join_that_finds_nothing_are_whole(tmp_path: Path) -> None:
    """DuckDB 2.0.1 by itself narrows such sums to one byte (traces.store.SAFE_SETTINGS)."""
    target = tmp_path / "x.duckdb"
    ingest_once([str(small_trace(tmp_path / "a.json"))], target, IngestOptions())
    expected = [(f"g{r}", sum(1000 + i for i in range(r, 10_000, 3))) for r in range(3)]
    with TraceStore.open(target) as store:
        assert store.query(NARROW).rows() == expected
    with writing(target) as con:
        assert con.sql(NARROW).to_arrow_table().to_pylist() == [{"g": g, "total": total} for g, total in expected]
