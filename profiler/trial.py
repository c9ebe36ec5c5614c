"""Several passes against one engine or several, in turns: what a comparison needs (A, B, A, B, …).

Each trial is a run directory of its own, like that of `profile` but without a recording: requests, step ledger, prompts.
Engines of all trials live at once and only one of them is loaded at a time, so what differs between two passes is not when
they ran.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.config import ProfileConfig
from profiler.progress import Observer
from profiler.session import prepared, settled, sigterm_as_interrupt
from traces.errors import UsageProblem
from traces.manifest import RunManifest

if TYPE_CHECKING:
    from profiler.stages import Stages
    from profiler.workloads.request import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine and its passes, (name, plan) in order; names are unique."""

    config: ProfileConfig  # with trace=False
    warmup: Plan
    passes: tuple[tuple[str, Plan], ...]


def run_trials(trials: Sequence[Trial], observer: Observer) -> list[RunManifest]:
    """First pass of every trial, then the second of every one, and so on; a manifest per trial.

    Raises UsageProblem, and EngineFailed where an engine never served. Blocks; call it from the main thread.
    """
    if not trials or any(not trial.passes or trial.config.trace for trial in trials):
        raise UsageProblem("a trial needs passes, and records no trace", hint="set trace=False")
    stages = [prepared(trial.config, trial.passes[0][1], observer) for trial in trials]
    with contextlib.ExitStack() as stack:
        for each in stages:
            stack.enter_context(settled(each))
        with sigterm_as_interrupt():
            for each in stages:
                each.telemetry.start()
            asyncio.run(_in_turns(trials, stages))
        for each in stages:
            each.facts.status = "complete"
    return [each.facts.manifest() for each in stages]


async def _in_turns(trials: Sequence[Trial], stages: Sequence[Stages]) -> None:
    if all(each.facts.device_kind == "cpu" for each in stages):
        for each in stages:  # they load at once; on a GPU an engine measures how much memory is free while it loads
            each.process.start()
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(each.serving(trial.warmup))
            for trial, each in zip(trials, stages, strict=True)
        ]
        for round_ in range(max(len(trial.passes) for trial in trials)):
            for trial, each, server in zip(trials, stages, servers, strict=True):
                if round_ >= len(trial.passes):
                    continue
                if len(trials) > 1:  # no pass begins on an engine that has idled while others worked
                    await each.load(server, "warmup", trial.warmup)
                await each.load(server, *trial.passes[round_])
