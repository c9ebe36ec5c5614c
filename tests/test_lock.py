"""One writer of a database at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trace_builder import DECODE, US, TraceBuilder

from traces import lock
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.lock import sole_writer
from traces.store import TraceStore

HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from traces.lock import sole_writer
with sole_writer(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""
ROOT = Path(__file__).resolve().parents[1]


def holder(target: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of `target`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(ROOT), str(target)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def trace(path: Path, dur: int) -> str:
    built = TraceBuilder(rank=0).label(1_000 * US, 90 * US, DECODE)
    return str(built.launch(1_005 * US, 1, dur=1).kernel(1_010 * US, dur, 1).write(path))


def test_who_comes_second_is_told_who_writes(tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    other = holder(target)
    try:
        with pytest.raises(UsageProblem) as caught, sole_writer(target, wait_s=0.2):
            raise AssertionError
        assert f"is being written by process {other.pid}" in str(caught.value)
        assert "run the command again" in str(caught.value.hint)
    finally:
        other.kill()
        other.communicate()
    with sole_writer(target, wait_s=0):  # the lock of a dead process holds nobody up
        assert (tmp_path / ".run.duckdb.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_two_ingests_at_once_both_end_up_in_the_database(tmp_path: Path) -> None:
    target = tmp_path / "all.duckdb"
    paths = [trace(tmp_path / f"{number}.json", number * US) for number in (1, 2)]
    command = "import sys; from cli import main; sys.argv[1:1] = ['ingest']; main()"
    runs = [
        subprocess.Popen([sys.executable, "-c", command, path, "--out", str(target), "--no-analyze", "-q"], cwd=ROOT)
        for path in paths
    ]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    with TraceStore.open(target) as store:
        found = store.query("SELECT DISTINCT run_id, dur_ns FROM kernels ORDER BY dur_ns")
    assert found["dur_ns"].to_list() == [US, 2 * US]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["1.json", "2.json", "all.duckdb"]


def test_writers_take_turns(tmp_path: Path) -> None:
    """However the turns fall, nobody holds the lock together with another one, and no file stays."""
    target, inside, most = tmp_path / "run.duckdb", 0, 0

    def write() -> None:
        nonlocal inside, most
        for _ in range(10):
            with sole_writer(target):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (tmp_path / ".run.duckdb.lock").symlink_to(precious)
    with pytest.raises(UsageProblem, match="cannot write"):
        ingest_once([trace(tmp_path / "a.json", US)], tmp_path / "run.duckdb", IngestOptions())
    assert precious.read_text() == "keep me"


def test_the_wait_is_bounded() -> None:
    assert 0 < lock.WAIT_S <= 60
