"""The engines there are."""

from __future__ import annotations

from profiler.engines.base import Engine
from profiler.engines.vllm import Vllm
from traces.errors import UsageProblem

ENGINES: tuple[Engine, ...] = (Vllm(),)


def find_engine(name: str) -> Engine:
    """The engine called `name`. Raises UsageProblem."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    known = ", ".join(engine.name for engine in ENGINES)
    raise UsageProblem(f"unknown engine {name!r}", hint=f"known: {known}")
