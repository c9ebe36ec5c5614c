"""What a profiling run is made of; the CLI takes its defaults from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traces.errors import UsageProblem

DEVICES: tuple[str, ...] = ("auto", "cpu", "cuda")

# A stop of the torch profiler blocks the engine, on a CPU for some 20 ms per step with shapes, once nobody builds the
# summary table or compresses; and each step is 0.9 MB of JSON. On a GPU a step in a graph is a few hundred records.
DEFAULT_STEPS: Mapping[str, int] = {"cpu": 200, "cuda": 1000}
STOP_BASE_S = 60.0
STOP_PER_STEP_S = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of the profiled pass is recorded: 'auto' (steps by device), 'all', 'steps' or 'seconds' of it.

    A window begins with the pass, unless `centred`: then it lies in the middle of it, where sessions are under way, as
    far as a control pass has told how many steps there are.
    """

    kind: str = "auto"
    steps: int | None = None
    seconds: float | None = None
    centred: bool = False

    def for_device(self, device_kind: str) -> Window:
        """'auto' settled for a device; every other window as it is."""
        if self.kind != "auto":
            return self
        return Window(kind="steps", steps=DEFAULT_STEPS[device_kind], centred=True)

    def __str__(self) -> str:
        if self.kind == "steps":
            return f"steps={self.steps}" + (", centred" if self.centred else "")
        return f"seconds={self.seconds:g}" if self.kind == "seconds" else self.kind


def parse_window(text: str) -> Window:
    """`auto`, `all`, `steps=N` or `seconds=S`. Raises UsageProblem."""
    kind, separator, value = text.partition("=")
    try:
        if kind == "steps" and int(value) > 0:
            return Window(kind="steps", steps=int(value))
        if kind == "seconds" and 0 < float(value) < float("inf"):
            return Window(kind="seconds", seconds=float(value))
    except ValueError:
        pass
    if text in ("auto", "all") and not separator:
        return Window(kind=text)
    raise UsageProblem(f"cannot read the window {text!r}", hint="use all, steps=N or seconds=S")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """One run. `model_config` (a preset's configuration) or else `model_path` (folder or hub id) is what is served."""

    model: str  # as the user named it
    out: Path  # the run directory; must not exist, or be empty
    stepscope_version: str
    model_config: Mapping[str, Any] | None = None
    model_path: str | None = None
    engine: str = "vllm"
    workload: Mapping[str, Any] = field(default_factory=dict)  # kept in the manifest: spec and what it expands to
    seed: int = 0
    device: str = "auto"
    python: Path | None = None  # interpreter of the engine; default: this one
    engine_args: tuple[str, ...] = ()  # K=V or K, handed to the engine
    engine_env: Mapping[str, str] = field(default_factory=dict)  # for the engine alone, on top of this process's own
    window: Window = field(default_factory=Window)
    control: bool = True
    calibrate: bool = True  # on a CPU: measure its roofs for some seconds before the engine starts
    trace: bool = True
    port: int | None = None  # default: a free one
    ledger: bool = True
    telemetry_hz: float | None = 10.0  # samples of power, clocks and activity; 0: none, None: as fast as the sensor
    keep_text: bool = False  # write the prompts' text into plan.jsonl; without, only keys that tell equal prompts
    ready_timeout_s: float = 900.0  # from start to the first answer of /health; loading real weights takes minutes
    request_timeout_s: float = 600.0
    stop_timeout_s: float | None = None  # of stop_profile; default: scaled with the steps recorded

    def stop_deadline_s(self, steps: int | None) -> float:
        """Seconds that stop_profile may take after a window of `steps` (None: unknown)."""
        if self.stop_timeout_s is not None:
            return self.stop_timeout_s
        return STOP_BASE_S + STOP_PER_STEP_S * (steps if steps is not None else DEFAULT_STEPS["cuda"])
