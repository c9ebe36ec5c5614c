"""What the profiler has to know about an engine: how to start it, when it is ready, how to profile it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Under which the hook makes keys of prompts; it dies with the engine's processes and is written nowhere.
SECRET = "STEPSCOPE_LEDGER_SECRET"  # noqa: S105 - its name, not its value
# What brings the hook into the engine: set by us, with what the user has in them behind it.
_HOOKED = ("STEPSCOPE_LEDGER_DIR", SECRET, "PYTHONPATH", "VLLM_PLUGINS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server to start. Paths are absolute."""

    python: Path
    model: str  # folder or hub id
    served_name: str
    host: str
    port: int
    device_kind: str  # 'cpu' | 'cuda'
    random_weights: bool
    local_model: bool  # nothing has to be fetched
    trace_dir: Path | None  # None: no torch profiler
    ledger_dir: Path | None  # None: no hook
    engine_args: tuple[str, ...]  # K=V or K, as the user gave them


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A POST to the server; `body` is sent as JSON."""

    path: str
    body: dict[str, Any] | None = None


class Engine(Protocol):
    """One kind of server. Methods are pure."""

    name: str
    module: str  # what the engine's interpreter must be able to import
    distributions: tuple[str, ...]  # names it is installed under
    ready_path: str
    install_hint: str

    def argv(self, launch: Launch) -> list[str]:
        """The command line."""
        ...

    def environment(self, launch: Launch, inherited: dict[str, str]) -> dict[str, str]:
        """Variables to set on top of `inherited`; nothing else, so that they can be shown."""
        ...

    def start_profile(self, launch: Launch) -> HttpCall: ...

    def stop_profile(self) -> HttpCall: ...

    def diagnose(self, log: str) -> str | None:
        """A hint for a failure that the log names, else None."""
        ...


def with_given(
    engine: Engine, launch: Launch, inherited: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Variables to set on top of `inherited`: the engine's, and those that the user gave, which win but for the hook's."""
    added = engine.environment(launch, {**inherited, **given})
    return {**added, **given, **{name: added[name] for name in _HOOKED if name in added}}


def flags(engine_args: tuple[str, ...]) -> list[str]:
    """K=V becomes --K V, K alone --K; leading dashes are optional."""
    result: list[str] = []
    for argument in engine_args:
        key, separator, value = argument.partition("=")
        result.append("--" + key.lstrip("-"))
        if separator:
            result.append(value)
    return result


def named(engine_args: tuple[str, ...], *names: str) -> bool:
    """Whether the user set one of the flags `names` himself (written with - or _)."""
    given = {argument.partition("=")[0].lstrip("-").replace("_", "-") for argument in engine_args}
    return any(name in given or f"no-{name}" in given for name in names)
