"""From the options of `stepscope profile` to a configuration, a warm-up and a plan; from a manifest to an ending."""

from __future__ import annotations

import importlib.metadata
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiler.config import ProfileConfig, parse_window
from profiler.interpreter import gpu_name
from profiler.rundir import check_model_path
from profiler.telemetry import parse_hz
from traces.environment import looks_secret
from traces.errors import EngineFailed, UsageProblem
from traces.manifest import RunManifest

if TYPE_CHECKING:
    from profiler.workloads.request import Plan

DEFAULT_MODEL = {"cpu": "llama-160m", "cuda": "llama-3.1-8b"}
# Long enough to touch every kernel once, short enough not to matter.
WARMUP = "batch:n=2,prompt=64,output=4"
UNKNOWN_CONTEXT_TOKENS = 4096  # of a hub id, whose configuration only the engine will see


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What `run_profile` takes."""

    config: ProfileConfig
    warmup: Plan
    plan: Plan


def prepare(
    preset: Mapping[str, Any] | None,
    *,
    model: str,
    workload: str,
    seed: int,
    window: str,
    out: Path | None,
    telemetry_hz: str = "10",
    **rest: Any,
) -> Invocation:
    """Check and settle everything that needs no engine. `preset` is the configuration of `model` where it is one.

    Raises UsageProblem.
    """
    from profiler.workloads.plan import build_plan

    for argument in rest.get("engine_args", ()):
        name = argument.partition("=")[0].lstrip("- ").replace("_", "-").rstrip()
        if not name:
            raise UsageProblem(f"cannot read --engine-arg {argument!r}", hint="it looks like K=V or K")
        if name == "api-key":
            raise UsageProblem(
                "--engine-arg api-key: what loads the engine sends no key, and arguments are recorded",
                hint="leave it out: this server listens on loopback only, for as long as the run takes",
            )
    rest["engine_env"] = _settings(rest.get("engine_env", ()))
    context = _context_tokens(preset, model, rest.get("engine_args", ()))
    plan = build_plan(workload, seed, max_context_tokens=context)
    config = ProfileConfig(
        model=model, model_config=preset, model_path=None if preset is not None else model, seed=seed,
        out=out if out is not None else default_out(model, plan.spec), window=parse_window(window), telemetry_hz=parse_hz(telemetry_hz),
        workload={"spec": plan.spec, "requests": plan.n_requests, "sessions": len(plan.sessions)}
        | ({"notes": list(plan.notes)} if plan.notes else {}),
        stepscope_version=importlib.metadata.version("stepscope"), **rest,
    )  # fmt: skip
    return Invocation(config=config, plan=plan, warmup=build_plan(WARMUP, seed + 1, max_context_tokens=context))


def default_model(device: str) -> str:
    """The preset for --device: on a GPU a model that people serve, on a CPU one that is quick enough."""
    return DEFAULT_MODEL["cuda" if device == "cuda" or (device == "auto" and gpu_name() is not None) else "cpu"]


def default_out(model: str, spec: str) -> Path:
    """runs/<time>-<model>-<workload>."""
    words = f"{Path(model).name}-{spec.partition(':')[0]}"
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9._-]+', '-', words)}"


def next_steps(run_dir: Path) -> list[str]:
    """The run directory, and commands worth trying with it."""
    return [
        f"run directory: {run_dir}",
        "next:",
        f"  stepscope report {run_dir} -o report.html",
        f"  stepscope findings {run_dir}",
        f"  stepscope steps {run_dir}",
        f'  stepscope query {run_dir} "SELECT kind, count(*), sum(busy_ns) FROM steps GROUP BY kind"',
    ]


def check_outcome(manifest: RunManifest, run_dir: Path) -> None:
    """Raise EngineFailed where the run did not go through. An interrupted one is KeyboardInterrupt."""
    if manifest.status == "interrupted":
        raise KeyboardInterrupt
    if manifest.status != "complete":
        raise EngineFailed(
            manifest.failure or manifest.status, hint=f"what was recorded is in {run_dir}; its engine.log says more"
        )


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE of --engine-env, by name."""
    found: dict[str, str] = {}
    for item in given:
        name, mark, value = item.partition("=")
        if not mark or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise UsageProblem(f"cannot read --engine-env {item!r}", hint="it looks like NAME=VALUE")
        if name.startswith("STEPSCOPE_"):
            raise UsageProblem(f"--engine-env {name} is set by stepscope itself", hint="leave it out")
        if looks_secret(name):  # the value would be in the manifest
            raise UsageProblem(
                f"--engine-env {name} looks like a secret, and what is given here is recorded",
                hint="export it in the shell instead: the engine gets it, and it is not recorded",
            )
        found[name] = value
    return found


def _context_tokens(preset: Mapping[str, Any] | None, model: str, engine_args: tuple[str, ...]) -> int:
    for argument in engine_args:
        key, _, value = argument.partition("=")
        if key.lstrip("-").replace("_", "-") == "max-model-len" and value.isdigit():
            return int(value)
    config = preset
    if config is None:
        path, local = check_model_path(model)
        config = json.loads((Path(path) / "config.json").read_text()) if local else {}
    config = config.get("text_config") or config
    context = config.get("max_position_embeddings") or config.get("n_positions")
    return context if isinstance(context, int) else UNKNOWN_CONTEXT_TOKENS
