"""Traffic that names no sessions: found by prefix, from the keys of the engine's own blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ledger_run import at

from analyzers.agents_reading import read_agents
from analyzers.sessions import Unnamed, by_prefix
from cli import Composition
from traces.errors import NothingToAnalyze
from traces.ingest import IngestOptions, ingest
from traces.store import TraceStore


def named(*keys: tuple[int, ...]) -> dict[str, tuple[str, int]]:
    return by_prefix([Unnamed(request_id=str(i), keys=np.array(k, dtype=np.uint64)) for i, k in enumerate(keys)])


def test_a_request_continues_the_one_whose_whole_prompt_it_begins_with() -> None:
    found = named((1, 2), (1, 2, 3), (1, 2, 3, 4), (9, 8), (9, 8, 7))
    assert found == {
        "0": ("prefix-0", 0),
        "1": ("prefix-0", 1),
        "2": ("prefix-0", 2),
        "3": ("prefix-3", 0),
        "4": ("prefix-3", 1),
    }


def test_a_shared_system_prompt_makes_no_session() -> None:
    assert [session for session, _ in named((1, 2, 3), (1, 2, 4), (1, 2, 3, 5), (1, 2, 4, 6)).values()] == [
        "prefix-0", "prefix-1", "prefix-0", "prefix-1",
    ]  # fmt: skip


def test_nothing_is_told_of_what_has_no_whole_block() -> None:
    assert named((), (1,)) == {"1": ("prefix-0", 0)}


BLOCK = 16
MARKS = {"block_size": BLOCK, "num_blocks": 1000, "enable_prefix_caching": True}


class Traffic:
    """A step ledger of requests that nobody else knows: one step of prefill and one of decoding each."""

    def __init__(self) -> None:
        self.lines = [{"kind": "header", "pid": 7, "ts": at(-1), "engine": "vllm", **MARKS}]
        self.seq = 0

    def request(self, name: str, ms: float, prompt: int, cached: int, keys: tuple[int, ...]) -> Traffic:
        self.lines.append({"kind": "request", "event": "queued", "id": name, "ts": at(ms), "prompt": prompt, "session": None,
                           "arrival": at(ms), "keys": list(keys)})  # fmt: skip
        for new, before, out, last in ((prompt - cached, cached, 0, False), (1, prompt, 1, True)):
            start = ms + 1 + 10 * last
            self.lines.append({"kind": "step", "seq": self.seq, "t0": at(start), "t1": at(start), "m0": 0, "total": new,
                               "running": 1, "waiting": 0, "kv": 0.1, "ids": [name], "new": [new], "computed": [before],
                               "prompts": [prompt], "out": [out], "spec": [0], "first": [not last], "resumed": [False]})  # fmt: skip
            done = (
                {"done": [name], "reason": ["stop"], "done_out": [2]}
                if last
                else {"done": [], "reason": [], "done_out": []}
            )
            self.lines.append({"kind": "result", "seq": self.seq, "r0": at(start + 8), "r1": at(start + 8), "ids": [name],
                               "acc": [1], **done})  # fmt: skip
            self.seq += 1
        return self

    def store(self, folder: Path) -> TraceStore:
        folder.mkdir(exist_ok=True)
        path = folder / "7.jsonl"
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.lines))
        target = folder / "run.duckdb"
        ingest([str(path)], target, IngestOptions(finish=Composition().analysis()))
        return TraceStore.open(target)


def test_a_loop_is_accounted_to_the_block_without_any_client(tmp_path: Path) -> None:
    traffic = Traffic().request("a", 0, 40, 0, (11, 12)).request("b", 50, 70, 16, (11, 12, 13, 14))
    with traffic.store(tmp_path / "x") as store:
        report = read_agents(store)
        sessions = store.query("SELECT request_id, session_id, turn FROM requests ORDER BY request_id").rows()
    assert sessions == [("a", "prefix-0", 0), ("b", "prefix-0", 1)]
    second = report.turns[1]
    assert (second["cached"], second["evicted"], second["fresh"]) == (16, 16, 38)
    assert report.unlocated == 2, "nobody knows the messages"


def test_without_keys_it_says_that_prompts_are_not_known(tmp_path: Path) -> None:
    with (
        Traffic().request("a", 0, 10, 0, ()).store(tmp_path / "x") as store,
        pytest.raises(NothingToAnalyze, match="not known"),
    ):
        read_agents(store)
