"""A vLLM plugin for tests: sleeps planted at known places of the engine, each written down with its times (ns since the epoch).

Lines go to `planted-<pid>.jsonl` in the folder that IDLE_PLANTED names. Every third call sleeps: the scheduler's before or after
it schedules (in turn), the sampler's, and the model runner's where it prepares the model's input.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

SLEEP_S = 0.03
EVERY = 3


def register() -> None:
    """Entry point; loaded in every process of the engine."""
    folder = os.environ.get("IDLE_PLANTED")
    if not folder:
        return
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _plant(Scheduler, "schedule", "scheduler", folder, both_sides=True)
    _plant(Sampler, "forward", "sampling_output", folder)
    _plant(GPUModelRunner, "_prepare_inputs", "host_prepare", folder)


def _plant(owner: Any, name: str, cause: str, folder: str, *, both_sides: bool = False) -> None:
    original = getattr(owner, name)
    if hasattr(original, "_planted"):
        return
    calls = itertools.count()

    @functools.wraps(original)
    def planted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call = -1
        if (
            name != "schedule" or self.running or self.waiting
        ):  # else there is nothing to schedule, and nothing that waits
            call = next(calls)
        late = both_sides and call // EVERY % 2 == 1
        if call % EVERY == 0 and not late:
            _sleep(cause, folder)
        result = original(self, *arguments, **keywords)
        if call % EVERY == 0 and late:
            _sleep(cause, folder)
        return result

    planted._planted = True  # type: ignore[attr-defined]
    setattr(owner, name, planted)


def _sleep(cause: str, folder: str) -> None:
    start_ns = time.time_ns()
    time.sleep(SLEEP_S)
    line = {"cause": cause, "start_ns": start_ns, "end_ns": time.time_ns()}
    with Path(folder, f"planted-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
