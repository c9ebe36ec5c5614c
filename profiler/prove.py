"""The passes of a proof: a baseline (A) and a changed run (B), in turns, from what a recorded run says of itself.

Both sides have the seed of the run and every pass a cache salt of its own. A changed workload is sent to the same engine,
changed flags need a second one; both live at once and one is loaded at a time (profiler/trial.py). Round 0 of either side is
sent as well and does not count: it touches memory and kernels for the first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.invocation import Invocation, prepare
from profiler.progress import Observer
from profiler.trial import Trial, run_trials
from traces.errors import EngineFailed, UsageProblem

SIDES = ("A", "B")
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
    changed_workload: str | None = None
    without: tuple[str, ...] = ()  # flags that side B does not have
    added: tuple[str, ...] = ()  # and those it has instead

    @property
    def changed_args(self) -> tuple[str, ...]:
        """Engine arguments of side B."""
        gone = {_key(item) for item in (*self.without, *self.added)}
        return (*(item for item in self.engine_args if _key(item) not in gone), *self.added)


def repeat_of(config: Mapping[str, Any], preset: Mapping[str, Any] | None, change: Mapping[str, Any]) -> Repeat:
    """From the manifest of a run (`runs.config`) and the proof of a finding. Raises UsageProblem where it does not say."""
    try:
        python = config.get("engine_python")
        return Repeat(
            model=str(config["model"]), preset=preset, engine=str(config["engine"]),
            device="cpu" if config.get("device_kind") == "cpu" else "cuda",
            python=Path(python) if isinstance(python, str) else None, seed=int(config["seed"]),
            workload=str(config["workload"]["spec"]), engine_args=tuple(config["engine_args"]),
            changed_workload=change.get("workload"), without=tuple(change.get("without", ())),
            added=tuple(change.get("engine_args", ())),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UsageProblem("this run does not say how it was made", hint="record it again") from error


def run_proof(repeat: Repeat, *, rounds: int, out: Path, observer: Observer) -> list[Path]:
    """Run the passes A0, B0, A1, B1, …; the run directories that hold them.

    Raises UsageProblem for what cannot be run, EngineFailed where a side did not go through. Blocks; main thread only.
    """
    if not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise UsageProblem(f"{rounds} rounds", hint=f"from {LEAST_ROUNDS} to {MOST_ROUNDS}")
    _check_free(out)
    trials = _trials(repeat, rounds, out)
    manifests = run_trials(trials, observer)
    for manifest, trial in zip(manifests, trials, strict=True):
        if manifest.status == "interrupted":
            raise KeyboardInterrupt
        if manifest.status != "complete":
            raise EngineFailed(manifest.failure or manifest.status, hint=f"see {trial.config.out}/engine.log")
    return [trial.config.out for trial in trials]


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageProblem(f"{out} exists", hint="choose a new directory with --out, or leave --out out")


def _trials(repeat: Repeat, rounds: int, out: Path) -> list[Trial]:
    baseline = _job(repeat, repeat.workload, repeat.engine_args, out / "baseline")
    workload = repeat.changed_workload or repeat.workload
    apart = sorted(repeat.changed_args) != sorted(repeat.engine_args)
    changed = _job(repeat, workload, repeat.changed_args, out / "changed") if apart else None
    other = changed or _job(repeat, workload, repeat.engine_args, out / "baseline")
    passes = [
        [(f"{side}{number}", job.plan) for number in range(rounds + 1)]
        for side, job in zip(SIDES, (baseline, other), strict=True)
    ]
    if changed is None:
        return [_trial(baseline, [item for pair in zip(*passes, strict=True) for item in pair])]
    return [_trial(baseline, passes[0]), _trial(changed, passes[1])]


def _job(repeat: Repeat, workload: str, engine_args: tuple[str, ...], out: Path) -> Invocation:
    return prepare(
        repeat.preset, model=repeat.model, workload=workload, seed=repeat.seed, window="all", out=out, engine=repeat.engine,
        device=repeat.device, python=repeat.python, engine_args=engine_args, trace=False, calibrate=False, telemetry_hz="off",
    )  # fmt: skip


def _trial(job: Invocation, passes: Sequence[tuple[str, Any]]) -> Trial:
    return Trial(config=job.config, warmup=job.warmup, passes=tuple(passes))


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("-").replace("_", "-")
