"""The passes of a proof: a baseline (A) and a changed run (B), in turns, from what a recorded run says of itself.

Both sides have the seed of the run and every pass a cache salt of its own. A changed workload is sent to the same engine,
changed flags need a second one; both live at once and one is loaded at a time (profiler/trial.py). Round 0 of either side is
sent as well and does not count: it touches memory and kernels for the first time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.invocation import Invocation, prepare
from profiler.progress import Observer
from profiler.trial import Trial, run_trials
from traces.environment import may_be_shown
from traces.errors import EngineFailed, UsageProblem

SIDES = ("A", "B")
MEMORY_FLAG, MEMORY_SHARE = "gpu-memory-utilization", 0.9  # of a GPU, which two engines have to share; vLLM's default
# Which device of which machine, what only a recording needs, and what names code.
_NOT_REPEATED = re.compile(
    r".*VISIBLE_DEVICES|VLLM_CUSTOM_SCOPES_FOR_PROFILING|.*PLUGINS|LD_PRELOAD|.*_(?:PATH|DIR|ROOT|HOME|FILE|LIB|LIBRARY)"
)
_PLAIN = re.compile(r"[\w.,:=+-]*")  # no path, so no file of another machine
LEAST_ROUNDS, MOST_ROUNDS = 2, 20  # one pass of each tells nothing of the noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """How a run was made, and what is changed on side B. `preset`: the configuration of `model` where that is one."""

    model: str
    preset: Mapping[str, Any] | None
    engine: str
    device: str
    python: Path | None
    seed: int
    workload: str
    engine_args: tuple[str, ...]
    engine_env: tuple[str, ...] = ()  # NAME=VALUE
    changed_workload: str | None = None
    without: tuple[str, ...] = ()  # flags that side B does not have
    added: tuple[str, ...] = ()  # and those it has instead

    @property
    def apart(self) -> bool:
        """Whether the sides need an engine each."""
        return sorted(self._changed_args) != sorted(self.engine_args)

    @property
    def args(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Engine arguments of either side; two engines on one GPU get half of the memory each."""
        sides = self.engine_args, self._changed_args
        return (_halved(sides[0]), _halved(sides[1])) if self.apart and self.device == "cuda" else sides

    @property
    def _changed_args(self) -> tuple[str, ...]:
        gone = {_key(item) for item in (*self.without, *self.added)}
        return (*(item for item in self.engine_args if _key(item) not in gone), *self.added)


def repeat_of(
    config: Mapping[str, Any],
    preset: Mapping[str, Any] | None,
    change: Mapping[str, Any],
    *,
    python: Path | None = None,
    engine_env: Sequence[str] = (),
) -> Repeat:
    """From the manifest of a run (`runs.config`) and the proof of a finding. Raises UsageProblem where it does not say.

    The interpreter is the caller's: a database may come from anywhere, and names no program that is started. Settings of
    engines that were in its environment are set again; `engine_env`, NAME=VALUE, wins.
    """
    try:
        return Repeat(
            model=str(config["model"]), preset=preset, engine=str(config["engine"]),
            device="cpu" if config.get("device_kind") == "cpu" else "cuda",
            python=python, seed=int(config["seed"]),
            workload=str(config["workload"]["spec"]), engine_args=tuple(config["engine_args"]),
            engine_env=(*_repeated(config.get("engine_env")), *engine_env),
            changed_workload=change.get("workload"), without=tuple(change.get("without", ())),
            added=tuple(change.get("engine_args", ())),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UsageProblem("this run does not say how it was made", hint="record it again") from error


def _repeated(recorded: Any) -> list[str]:
    """Settings of `engine_env` as NAME=VALUE."""
    return [
        f"{name}={value}" for name, value in (recorded.items() if isinstance(recorded, dict) else ())
        if may_be_shown(name) and not _NOT_REPEATED.fullmatch(name) and _PLAIN.fullmatch(str(value))
    ]  # fmt: skip


def run_proof(repeat: Repeat, *, rounds: int, out: Path, observer: Observer) -> list[Path]:
    """Run the passes A0, B0, A1, B1, …; the run directories that hold them.

    Raises UsageProblem for what cannot be run, EngineFailed where a side did not go through. Blocks; main thread only.
    """
    if not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise UsageProblem(f"{rounds} rounds", hint=f"from {LEAST_ROUNDS} to {MOST_ROUNDS}")
    _check_free(out)
    trials = _trials(repeat, rounds, out)
    manifests = run_trials(trials, observer)
    broken = [item for item in manifests if item.status not in ("complete", "interrupted")]
    if broken:  # whichever engine it was: the others were left in the middle
        raise EngineFailed(broken[0].failure or broken[0].status, hint=f"see the engine.log files below {out}")
    if any(item.status == "interrupted" for item in manifests):
        raise KeyboardInterrupt
    return [trial.config.out for trial in trials]


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageProblem(f"{out} exists", hint="choose a new directory with --out, or leave --out out")


def _trials(repeat: Repeat, rounds: int, out: Path) -> list[Trial]:
    args = repeat.args
    workload = repeat.changed_workload or repeat.workload
    baseline = _job(repeat, repeat.workload, args[0], out / "baseline")
    other = _job(repeat, workload, args[1], out / ("changed" if repeat.apart else "baseline"))
    passes = [
        [(f"{side}{number}", job.plan) for number in range(rounds + 1)]
        for side, job in zip(SIDES, (baseline, other), strict=True)
    ]
    if repeat.apart:
        return [_trial(baseline, passes[0]), _trial(other, passes[1])]
    return [_trial(baseline, [item for pair in zip(*passes, strict=True) for item in pair])]


def _job(repeat: Repeat, workload: str, engine_args: tuple[str, ...], out: Path) -> Invocation:
    return prepare(
        repeat.preset, model=repeat.model, workload=workload, seed=repeat.seed, window="all", out=out, engine=repeat.engine,
        device=repeat.device, python=repeat.python, engine_args=engine_args, engine_env=repeat.engine_env, trace=False,
        calibrate=False, telemetry_hz="off",
    )  # fmt: skip


def _trial(job: Invocation, passes: Sequence[tuple[str, Any]]) -> Trial:
    return Trial(config=job.config, warmup=job.warmup, passes=tuple(passes))


def _halved(engine_args: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments with half of the GPU memory they ask for. Raises UsageProblem where that is no number."""
    given = [item.partition("=")[2] for item in engine_args if _key(item) == MEMORY_FLAG]
    try:
        share = float(given[-1]) if given else MEMORY_SHARE
    except ValueError as error:
        raise UsageProblem(
            f"--{MEMORY_FLAG} {given[-1][:40]!r} is not a number", hint="record the run again"
        ) from error
    return (*(item for item in engine_args if _key(item) != MEMORY_FLAG), f"{MEMORY_FLAG}={share / 2:g}")


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("-").replace("_", "-")
