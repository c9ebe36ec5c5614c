"""Agent loops with a known price: a ledger whose steps follow a law exactly, and the table `reuse` that goes with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from ledger_run import Run

BLOCK = 16
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


def repaired(turns: list[Turn], block: int = BLOCK) -> list[Turn]:
    """The same prompts with what was lost in the cache, in whole blocks."""
    wholes = [turn.lost_until // block * block for turn in turns]
    return [
        Turn(prompt=turn.prompt, cached=max(turn.cached, whole), lost_until=whole, output=turn.output)
        for turn, whole in zip(turns, wholes, strict=True)
    ]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Serving:
    """A request that the engine has taken in."""

    name: str
    turn: Turn
    session: int
    number: int
    arrival: float
    seen: int
    made: int = 0
    tokens: list[float] = field(default_factory=list)


def loop(directory: Path, turns: list[Turn], law: Law, *, budget: int = 100_000) -> Run:
    """One session's turns, a step at a time; prompts are cut into chunks of `budget` tokens."""
    return loops(directory, [turns], law, budget=budget)


def loops(
    directory: Path,
    sessions: list[list[Turn]],
    law: Law,
    *,
    budget: int = 100_000,
    tool: float = 20,
    stagger: float = 7,
) -> Run:
    """Sessions that share an engine which batches continuously: decodes first, then prompts as far as `budget` goes.

    A turn's request is called t<turn>, with s<session> before it from the second session on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run, now = Run(directory), 0.0
    due = {number: (number * stagger, 0) for number in range(len(sessions))}
    active: list[Serving] = []
    while due or active:
        if not active:
            now = max(now, min(at for at, _ in due.values()))
        for session in [number for number, (at, _) in due.items() if at <= now]:
            at, number = due.pop(session)
            turn = sessions[session][number]
            name = f"s{session}t{number}" if session else f"t{number}"
            active.append(Serving(name=name, turn=turn, session=session, number=number, arrival=at, seen=turn.cached))
            run.prompts[name] = turn.prompt
        rows: dict[str, tuple[int, int, int]] = {}
        took, left = law.base, budget
        for item in active:
            if item.made:
                rows[item.name] = (1, item.turn.prompt + item.made - 1, 1)
                took += law.decode + law.context * (item.turn.prompt + item.made)
        for item in active:
            n = min(left, item.turn.prompt - item.seen)
            if not item.made and n:
                rows[item.name] = (n, item.seen, int(item.seen + n == item.turn.prompt))
                took += law.step_ms((item.seen, item.seen + n), ()) - law.base
                left -= n
        run.step(now, now + took, **rows)
        now += took
        for item in list(active):
            n, _, made = rows.get(item.name, (0, 0, 0))
            item.seen += n if not item.made else 0
            item.made += made
            item.tokens += [now] * made
            if item.made == item.turn.output:
                active.remove(item)
                run.request(
                    item.name, item.arrival, queued=item.arrival, end=now, tokens=tuple(item.tokens), prompt=item.turn.prompt,
                    session_id=f"s{item.session}", turn=item.number, cached_tokens=item.turn.cached,
                )  # fmt: skip
                if item.number + 1 < len(sessions[item.session]):
                    due[item.session] = (now + tool, item.number + 1)
        now += 0.5
    return run


def step_ms(run: Run) -> float:
    """The engine's step time, by adding up."""
    results = {line["seq"]: line["r0"] for line in run.ledger if line["kind"] == "result"}
    return sum(results[line["seq"]] - line["t1"] for line in run.ledger if line["kind"] == "step") / 1e6


def tiled(database: Path, run: Run, turns: list[Turn], **how: Any) -> str:
    """Fill `reuse` and `runs.config` of an ingested loop as `profile` and `agents` would; the run's id."""
    return all_tiled(database, run, [turns], **how)


def all_tiled(database: Path, run: Run, sessions: list[list[Turn]], *, cause: str = "prefix_changed", role: str | None = "system",
              detail: str | None = "volatile text in the system prompt", block: int = BLOCK, **config: Any) -> str:  # fmt: skip
    """The same for several sessions."""
    known = {
        "model": "tiny", "engine": "vllm", "device_kind": "cpu", "seed": 0, "workload": {"spec": WORKLOAD},
        "engine_args": [], "engine_facts": {"block_size": block, "num_blocks": 100},
    } | config  # fmt: skip
    rows = []
    for session, turns in enumerate(sessions):
        for number, turn in enumerate(turns):
            name = run.engine_id(f"s{session}t{number}" if session else f"t{number}")
            for piece, a, b in (
                ("cached", 0, turn.cached), ("lost", turn.cached, turn.lost_until), ("fresh", turn.lost_until, turn.prompt),
            ):  # fmt: skip
                told = (cause, turn.cached if role else None, role, detail) if piece == "lost" else (None,) * 4
                if b > a:
                    rows.append([name, piece, a, b - a, *told])
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("UPDATE runs SET source = 'profile', config = ?", [json.dumps(known)])
        con.executemany(
            "INSERT INTO reuse (run_id, request_id, piece, start_token, tokens, cause, divergence_token, divergence_role, detail) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [[run_id, *row] for row in rows],
        )  # fmt: skip
    return str(run_id)
