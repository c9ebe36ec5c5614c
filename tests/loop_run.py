"""Agent loops with a known price: a ledger whose steps follow a law exactly, and the table `reuse` that goes with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from ledger_run import Run

WORKLOAD = "agent:sessions=1,timestamp=head,turns=5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What a step takes, ms: a base, and prices per token, pair, decoding token and token it looks back on."""

    base: float = 2.0
    token: float = 0.02
    pair: float = 1e-5
    decode: float = 0.3
    context: float = 1e-4

    def step_ms(self, chunk: tuple[int, int] | None, decodes: tuple[int, ...]) -> float:
        """`chunk`: [a, b) of a prompt; `decodes`: contexts of requests that decode beside it."""
        took = self.base + len(decodes) * self.decode + sum(decodes) * self.context
        if chunk is not None:
            a, b = chunk
            took += (b - a) * self.token + (b * (b + 1) - a * (a + 1)) / 2 * self.pair
        return took


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A prompt: `cached` of its tokens reused, those up to `lost_until` computed again, the rest fresh."""

    prompt: int
    cached: int
    lost_until: int
    output: int = 6


def loop(directory: Path, turns: list[Turn], law: Law, *, budget: int = 100_000) -> Run:
    """One session's turns, a step at a time; prompts are cut into chunks of `budget` tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    run, now = Run(directory), 0.0
    for number, turn in enumerate(turns):
        name, arrival, seen = f"t{number}", now, turn.cached
        steps: list[tuple[float, float, tuple[int, int, int]]] = []
        while seen < turn.prompt:
            until = min(seen + budget, turn.prompt)
            took = law.step_ms((seen, until), ())
            steps.append((now, now + took, (until - seen, seen, int(until == turn.prompt))))
            seen, now = until, now + took + 0.5
        first = steps[-1][1]
        for made in range(1, turn.output):
            took = law.step_ms(None, (turn.prompt + made,))
            steps.append((now, now + took, (1, turn.prompt + made - 1, 1)))
            now += took + 0.5
        run.request(
            name, arrival, queued=arrival, end=now, tokens=(first, *(end for _, end, _ in steps[len(steps) - turn.output + 1 :])),
            prompt=turn.prompt, session_id="s", turn=number, cached_tokens=turn.cached,
        )  # fmt: skip
        for start, end, row in steps:
            run.step(start, end, **{name: row})
        now += 20
    return run


def step_ms(run: Run) -> float:
    """The engine's step time, by adding up."""
    results = {line["seq"]: line["r0"] for line in run.ledger if line["kind"] == "result"}
    return sum(results[line["seq"]] - line["t1"] for line in run.ledger if line["kind"] == "step") / 1e6


def tiled(database: Path, run: Run, turns: list[Turn], *, cause: str = "prefix_changed", role: str | None = "system",
          detail: str | None = "volatile text in the system prompt", block: int = 16, **config: Any) -> str:  # fmt: skip
    """Fill `reuse` and `runs.config` of an ingested loop as `profile` and `agents` would; the run's id."""
    known = {
        "model": "tiny", "engine": "vllm", "device_kind": "cpu", "seed": 0, "workload": {"spec": WORKLOAD},
        "engine_args": [], "engine_facts": {"block_size": block, "num_blocks": 100},
    } | config  # fmt: skip
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("UPDATE runs SET source = 'profile', config = ?", [json.dumps(known)])
        for number, turn in enumerate(turns):
            for piece, a, b in (
                ("cached", 0, turn.cached), ("lost", turn.cached, turn.lost_until), ("fresh", turn.lost_until, turn.prompt),
            ):  # fmt: skip
                lost = piece == "lost"
                if b > a:
                    con.execute(
                        "INSERT INTO reuse (run_id, request_id, piece, cause, start_token, tokens, divergence_token, "
                        "divergence_role, detail) "
                        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        [run_id, run.engine_id(f"t{number}"), piece, cause if lost else None, a, b - a,
                         turn.cached if lost and role else None, role if lost else None, detail if lost else None],
                    )  # fmt: skip
    return str(run_id)
