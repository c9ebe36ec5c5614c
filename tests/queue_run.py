"""A server with a known price: continuous batching with seats, a token budget and a cache, whose steps follow a law exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ledger_run import Run, at
from loop_run import Law

GAP_MS = 0.5  # between two steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of the engine; `cache`: tokens it holds."""

    seats: int = 16
    budget: int = 512
    cache: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request: when it comes (ms), its prompt, its output."""

    at: float = 0.0
    prompt: int = 64
    output: int = 16


@dataclass(slots=True)
class _Seat:
    name: str
    ask: Ask
    computed: int = 0
    made: int = 0
    resumed: bool = False
    started: bool = False
    tokens: list[float] = field(default_factory=list)

    @property
    def todo(self) -> int:
        """Tokens known and not computed."""
        return self.ask.prompt + self.made - self.computed


@dataclass(slots=True)
class Step:
    """What was scheduled: (tokens, computed before, output) by request."""

    start: float
    end: float
    rows: dict[str, tuple[int, int, int]]
    resumed: tuple[str, ...]
    running: int
    waiting: int
    usage: float


def simulate(asks: Sequence[Ask], limits: Limits, law: Law) -> tuple[list[Step], list[_Seat]]:
    """The steps, one after another; the newest request is preempted where the cache is full."""
    coming = [_Seat(f"q{number}", ask) for number, ask in enumerate(asks)]
    every, waiting, running = list(coming), [], []
    now, steps = 0.0, []
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].ask.at)
        while coming and coming[0].ask.at <= now:
            waiting.append(coming.pop(0))
        step, given = _schedule(running, waiting, limits), {}
        took, chunks, decodes = law.base, [], []
        for seat, tokens in step:
            until = seat.computed + tokens
            if seat.made and tokens == 1:
                decodes.append(until)
            else:
                chunks.append((seat.computed, until))
            given[seat.name] = (tokens, seat.computed, int(until == seat.ask.prompt + seat.made))
        took += (
            sum(law.step_ms(chunk, ()) - law.base for chunk in chunks) + law.step_ms(None, tuple(decodes)) - law.base
        )
        resumed = tuple(seat.name for seat, _ in step if seat.resumed)
        usage = sum(seat.computed + tokens for seat, tokens in step) / limits.cache
        steps.append(Step(now, now + took, given, resumed, len(running), len(waiting), min(1.0, usage)))
        now += took
        for seat, tokens in step:
            seat.computed += tokens
            seat.resumed, seat.started = False, True
            if given[seat.name][2]:
                seat.made += 1
                seat.tokens.append(now)
            if seat.made == seat.ask.output:
                running.remove(seat)
        now += GAP_MS
    return steps, every


def _schedule(running: list[_Seat], waiting: list[_Seat], limits: Limits) -> list[tuple[_Seat, int]]:
    """Those that run first, then those that wait, as far as budget, seats and cache reach."""
    left, step = limits.budget, []
    while running and sum(seat.computed + 1 for seat in running) > limits.cache:
        lost = running.pop()
        lost.computed, lost.resumed = 0, True
        waiting.insert(0, lost)
    for seat in running:
        tokens = min(seat.todo, left)
        if tokens:
            step.append((seat, tokens))
            left -= tokens
    held = sum(seat.ask.prompt + seat.made for seat in running)
    while waiting and left and len(running) < limits.seats:
        need = waiting[0].ask.prompt + waiting[0].made
        if held + need > limits.cache:
            break
        seat = waiting.pop(0)
        running.append(seat)
        step.append((seat, min(seat.todo, left)))
        left -= step[-1][1]
        held += need
    return step


def recorded(directory: Path, asks: Sequence[Ask], limits: Limits, law: Law, *, late_ms: float = 0.0) -> Run:
    """The run directory of it. `late_ms`: what the client sees later than the engine gave it."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory)
    steps, seats = simulate(asks, limits, law)
    for seat in seats:
        run.request(
            seat.name, seat.ask.at, queued=seat.ask.at, end=seat.tokens[-1] + late_ms, prompt=seat.ask.prompt,
            tokens=tuple(each + late_ms for each in seat.tokens),
        )  # fmt: skip
    for step in steps:
        run.step(step.start, step.end, resumed=step.resumed, **step.rows)
        line = next(line for line in reversed(run.ledger) if line["kind"] == "step")
        line.update(running=step.running, waiting=step.waiting, kv=step.usage, t1=at(step.start))
    return run


def total_ms(asks: Sequence[Ask], limits: Limits, law: Law) -> float:
    """The engine's step time."""
    return sum(step.end - step.start for step in simulate(asks, limits, law)[0])
