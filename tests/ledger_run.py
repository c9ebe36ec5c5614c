"""A run directory from literals: the step ledger of an engine core and the client's request records. Times in ms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from traces.ingest import IngestOptions, ingest

MS = 1_000_000
BASE_NS = 1_795_981_680_000_000_000


def at(ms: float) -> int:
    return BASE_NS + round(ms * MS)


class Run:
    """A run directory in the making: ledger lines and request records."""

    def __init__(self, directory: Path, **header: Any) -> None:
        self.directory = directory
        self.ledger: list[dict[str, Any]] = [{"kind": "header", "pid": 7, "ts": at(-1), **header}]
        self.records: list[dict[str, Any]] = []
        self.prompts: dict[str, int] = {}
        self.seen: set[str] = set()
        self.outputs: dict[str, int] = {}
        self.seq = 0

    def request(
        self, name: str, arrival: float, *, end: float, queued: float | None = None, tokens: tuple[float, ...] = (),
        status: str = "ok", prompt: int = 64, **values: Any,
    ) -> Run:  # fmt: skip
        times = [at(ms) for ms in tokens]
        record = {
            "stepscope_request": 1, "client_request_id": name, "pass": "control", "session_id": name, "turn": 0,
            "sent_ns": at(arrival), "first_token_ns": times[0] if times else None,
            "last_token_ns": times[-1] if times else None, "finished_ns": at(end), "prompt_tokens": prompt,
            "cached_tokens": 0, "output_tokens": len(times), "status": status, "tool_ns": 0, "token_ns": times,
        }  # fmt: skip
        self.records.append(record | values)
        self.prompts[name] = prompt
        if queued is not None:
            self.ledger.append(
                {"kind": "request", "event": "queued", "id": self.engine_id(name), "ts": at(queued), "prompt": prompt}
            )
        return self

    def engine_id(self, name: str) -> str:
        return f"chatcmpl-{name}-0123abcd"

    def step(
        self, start: float, end: float | None, *, resumed: tuple[str, ...] = (), **rows: tuple[int, int, int]
    ) -> Run:
        """`rows`: request → (tokens scheduled, tokens computed before, output tokens that came of it)."""
        ids = [self.engine_id(name) for name in rows]
        self.ledger.append({
            "kind": "step", "seq": self.seq, "t0": at(start), "t1": at(start), "m0": 0,
            "total": sum(row[0] for row in rows.values()),
            "running": len(rows), "waiting": 0, "kv": 0.1, "ids": ids, "new": [r[0] for r in rows.values()],
            "computed": [r[1] for r in rows.values()], "prompts": [self.prompts[name] for name in rows],
            "out": [self.outputs.get(name, 0) for name in rows], "spec": [0] * len(rows),
            "first": [name not in self.seen for name in rows], "resumed": [name in resumed for name in rows],
        })  # fmt: skip
        if end is not None:
            acc = [r[2] for r in rows.values()]
            result = {"kind": "result", "seq": self.seq, "r0": at(end), "r1": at(end), "ids": ids, "acc": acc}
            self.ledger.append(result | {"done": [], "reason": [], "done_out": []})
        for name, row in rows.items():
            self.outputs[name] = self.outputs.get(name, 0) + row[2]
        self.seen |= set(rows)
        self.seq += 1
        return self

    def preempted(self, name: str, ts: float) -> Run:
        self.ledger.append({"kind": "request", "event": "preempted", "id": self.engine_id(name), "ts": at(ts)})
        return self

    def ingest(self) -> Path:
        self.directory.mkdir(exist_ok=True)
        for name, lines in (("7.jsonl", self.ledger), ("requests.jsonl", self.records)):
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            (self.directory / name).write_text(text if name != "7.jsonl" or self.seq else "")
        target = self.directory / "run.duckdb"
        target.unlink(missing_ok=True)
        names = ["requests.jsonl", "7.jsonl"] if self.seq else ["requests.jsonl"]
        ingest([str(self.directory / name) for name in names], target, IngestOptions())
        return target


def alone(run: Run) -> Run:
    """One request with three tokens: 10 ms of prefill, two decode steps of 4 ms."""
    run.request("a", 0, queued=2, end=27, tokens=(17, 22, 26))
    return run.step(5, 15, a=(64, 0, 1)).step(16, 20, a=(1, 64, 1)).step(20, 24, a=(1, 65, 1))
