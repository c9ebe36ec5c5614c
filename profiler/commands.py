"""Commands that start or look at engines: profile, doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)


def _options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


python_option = click.option("--python", type=_PATH, help="Interpreter of the engine's environment; default: this one.")
engine_option = click.option("--engine", default="vllm", show_default=True, help="vllm.")
engine_options = _options(
    engine_option,
    click.option("--model", help="Preset, folder or hub id. Default: llama-160m on a CPU, llama-3.1-8b on a GPU."),
    click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"])),
    python_option,
    click.option("--engine-arg", "engine_args", multiple=True, metavar="K[=V]", help="Handed to the engine as --K V."),
    click.option(
        "--ready-timeout", "ready_timeout_s", default=900.0, show_default=True, help="Seconds until it serves."
    ),
    click.option("--port", type=click.IntRange(1, 65535), help="Default: a free one."),
)
load_options = _options(
    click.option("--workload", default="agent", show_default=True, help="agent, chat or batch, with :key=value,…"),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the workload."),
)
capture_options = _options(
    click.option(
        "--window", default="auto", show_default=True, help="all, steps=N or seconds=S; auto bounds the steps."
    ),
    click.option("--stop-timeout", "stop_timeout_s", type=float, help="Seconds for stop_profile; default: by steps."),
    click.option("--no-control", "control", flag_value=False, default=True, help="Skip the unprofiled pass."),
    click.option(
        "--no-calibrate", "calibrate", flag_value=False, default=True, help="CPU: do not measure its roofs first."
    ),
    click.option("--no-trace", "trace", flag_value=False, default=True, help="Step ledger only, no torch profiler."),
)
output_options = _options(
    click.option("--out", type=_PATH, help="Run directory to make; default: runs/<time>-<model>-<workload>."),
    click.option("--json", "as_json", is_flag=True, help="The summary as JSON."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
)


@click.command()
@engine_options
@load_options
@capture_options
@output_options
@click.pass_obj
def profile(obj: Any, /, model: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Start an engine, run a workload without and with its profiler, and say where the time went."""
    from profiler.invocation import check_outcome, default_model, prepare
    from profiler.progress import Silent, Terminal
    from profiler.session import run_profile

    model = model or default_model(options["device"])
    job = prepare(obj.resolve_model(model), model=model, **options)
    manifest = run_profile(job.config, job.warmup, job.plan, Silent() if quiet else Terminal())
    _conclude(obj, job.config.out, failed=manifest.status != "complete", as_json=as_json, quiet=quiet)
    check_outcome(manifest, job.config.out)


def _conclude(obj: Any, run_dir: Path, *, failed: bool, as_json: bool, quiet: bool) -> None:
    """Ingest and summarise; after a failure as far as that goes."""
    from profiler.invocation import next_steps
    from traces.errors import StepscopeError

    try:
        obj.finish(run_dir, as_json=as_json, quiet=quiet)
    except StepscopeError as error:
        if not failed:
            raise
        click.echo(f"no summary: {error.message}", err=True)
    if not quiet and not failed:
        click.echo("\n".join(["", *next_steps(run_dir)]), err=as_json)


@click.command()
@engine_option
@python_option
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
def doctor(engine: str, python: Path | None, as_json: bool) -> None:
    """Check what a run needs, each line with its remedy. Exit 4 where no engine can be started."""
    from profiler.doctor import examine, render

    checks = examine(engine, python)
    click.echo(render(checks, as_json=as_json))
    if any(check.status == "fail" for check in checks):
        raise click.exceptions.Exit(4)


@click.command()
@python_option
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--bind", default="auto", show_default=True, help="CPUs to compute on, as VLLM_CPU_OMP_THREADS_BIND.")
@click.option("--short", is_flag=True, help="A few seconds, less sure.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def calibrate(python: Path | None, as_json: bool, **options: Any) -> None:
    """Measure what this machine reaches, for the analyses of its runs: matrix products, memory, smallest work."""
    import json
    import sys

    from profiler.calibrate import CalibrateConfig, measure, report
    from traces.calibration import store_calibration

    found = measure(CalibrateConfig(python=python or Path(sys.executable), **options))
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else "\n".join(report(found)))
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"kept in {store_calibration(found)}", err=True)
