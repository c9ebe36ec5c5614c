"""A real vLLM on the CPU with sleeps planted in it: each lands on its cause. One start of the engine for all of them.

Planted in the engine: around scheduling, in the sampler and in input preparation (tests/idle_planter). Planted by the workload:
the client's tool waits between the turns of a session, and no request at all between the first session and the second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from engine_harness import Ended, left_behind, profile_real
from engine_llama import ENGINE_MARKS

pytestmark = ENGINE_MARKS

PLANTER = Path(__file__).resolve().parent / "idle_planter"
# One session after the other: a session takes about a second, and three times that where the machine is slow.
WORKLOAD = "agent:sessions=2,turns=3,output=12,stagger=6,tool_wait=0.3"
ENOUGH = 0.95
Span = tuple[int, int]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("planted")
    ended = profile_real(
        folder / "run", "--workload", WORKLOAD, "--window", "all", "--no-control", "--no-calibrate",
        env={"PYTHONPATH": str(PLANTER), "IDLE_PLANTED": str(folder)},
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert (ended.manifest["status"], ended.manifest["hook_errors"]) == ("complete", [])
    assert left_behind(ended.run_dir) == []
    return ended


def rows(run: Ended, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(run.run_dir / "run.duckdb"), read_only=True) as con:
        return con.execute(sql).fetchall()


def landed(run: Ended, spans: list[Span]) -> dict[str, float]:
    """Shares of the spans' time by what the database says of it; 'busy' where no gap is."""
    gaps = rows(run, "SELECT start_ns, start_ns + dur_ns, cause FROM gaps ORDER BY start_ns")
    whole = sum(end - start for start, end in spans)
    found = {"busy": whole}
    for begin, end in spans:
        for start, stop, cause in gaps:
            overlap = min(stop, end) - max(start, begin)
            if overlap > 0:
                found[cause] = found.get(cause, 0) + overlap
                found["busy"] -= overlap
    return {cause: ns / whole for cause, ns in found.items()}


def in_window(run: Ended, spans: list[Span]) -> list[Span]:
    ((low, high),) = rows(run, "SELECT window_start_ns, window_end_ns FROM devices")
    return [(start, end) for start, end in spans if start >= low and end <= high]


def requests(run: Ended) -> list[dict[str, Any]]:
    """What the client wrote of the profiled pass."""
    records = [json.loads(line) for line in (run.run_dir / "requests.jsonl").read_text().splitlines()]
    return [record for record in records if record["pass"] == "profiled"]


@pytest.mark.parametrize("cause", ["scheduler", "sampling_output", "host_prepare"])
def test_sleeps_in_the_engine(planted: Ended, cause: str) -> None:
    lines = [
        json.loads(line)
        for file in planted.run_dir.parent.glob("planted-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    spans = in_window(planted, [(line["start_ns"], line["end_ns"]) for line in lines if line["cause"] == cause])
    assert len(spans) >= 10 and sum(end - start for start, end in spans) > 0.3e9
    found = landed(planted, spans)
    assert found.get(cause, 0) >= ENOUGH, found


def test_waits_of_the_client_for_its_tools(planted: Ended) -> None:
    turns = {(record["session_id"], record["turn"]): record for record in requests(planted)}
    last = max(turn for _, turn in turns)
    spans = [
        (record["finished_ns"], record["finished_ns"] + record["tool_ns"])
        for (_, turn), record in turns.items()
        if turn < last
    ]
    assert len(spans) == 4 and all(end - start == 300_000_000 for start, end in spans)
    assert spans == in_window(planted, spans)
    found = landed(planted, spans)
    assert found.get("tool_wait", 0) >= ENOUGH, found


def test_no_request_between_two_sessions(planted: Ended) -> None:
    records = requests(planted)
    over = max(record["finished_ns"] for record in records if record["session_id"] == "agent-0")
    begins = min(record["sent_ns"] for record in records if record["session_id"] == "agent-1")
    if begins - over < 100_000_000:
        pytest.skip("the machine is so slow that the first session was not over when the second began")
    found = landed(planted, [(over, begins)])
    assert found.get("no_work", 0) >= ENOUGH, found


def test_from_the_client_to_the_queue_it_is_the_frontend(planted: Ended) -> None:
    """Every request finds the engine empty here."""
    spans = rows(
        planted, "SELECT arrival_ns, queued_ns FROM requests WHERE pass = 'profiled' AND queued_ns > arrival_ns"
    )
    found = landed(planted, in_window(planted, spans))
    assert found.get("frontend", 0) >= ENOUGH, found


def test_pieces_and_busy_time_make_the_window(planted: Ended) -> None:
    ((busy, window, gaps),) = rows(
        planted, "SELECT busy_ns, window_end_ns - window_start_ns, (SELECT sum(dur_ns) FROM gaps) FROM devices"
    )
    assert busy + gaps == window
    assert rows(planted, "SELECT count(*) FROM gaps WHERE cause IS NULL OR cause = 'unknown'") == [(0,)]
    ((bound,),) = rows(planted, "SELECT mode(bound) FROM steps WHERE kind = 'decode'")
    assert bound == "host", "with sleeps like these"
