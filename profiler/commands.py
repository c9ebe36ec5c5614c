"""Commands that start or look at engines, or say what they would be sent: profile, workload, doctor, calibrate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from traces.printable import printable

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
engine_env_option = click.option(
    "--engine-env", multiple=True, metavar="NAME=VALUE", help="Environment variable for the engine alone."
)
engine_options = _options(
    engine_option,
    click.option("--model", help="Preset, folder or hub id. Default: llama-160m on a CPU, llama-3.1-8b on a GPU."),
    click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"])),
    python_option,
    click.option("--engine-arg", "engine_args", multiple=True, metavar="K[=V]", help="Handed to the engine as --K V."),
    engine_env_option,
    click.option(
        "--ready-timeout", "ready_timeout_s", default=900.0, show_default=True, help="Seconds until it serves."
    ),
    click.option("--port", type=click.IntRange(1, 65535), help="Default: a free one."),
)
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the workload.")
_SCALE = click.FloatRange(min=0, min_open=True)
# Each is an option of the workload as well, written rate_scale=2: see docs/workloads.md.
TRANSFORMS = ("first", "pool", "member", "time_scale", "rate_scale", "length_scale", "bad_rows")
transform_options = _options(
    click.option("--first", type=click.IntRange(min=1), metavar="N", help="Of arrivals: only the first N requests."),
    click.option("--pool", type=click.IntRange(min=1), metavar="K", help="The share of one of K servers."),
    click.option("--member", type=click.IntRange(min=0), metavar="I", help="Which server of the pool, from 0."),
    click.option("--time-scale", type=_SCALE, help="All times so many times as long."),
    click.option("--rate-scale", type=_SCALE, help="So many times as many arrivals in the same time."),
    click.option("--length-scale", type=_SCALE, help="Prompts and outputs so many times as long."),
    click.option("--bad-rows", type=click.Choice(["skip", "stop"]), help="Rows of a log that are no requests."),
)
load_options = _options(
    click.option(
        "--workload", default="agent", show_default=True,
        help="agent (agent:path=LOG too), chat, batch, replay:path=LOG, poisson, gamma or burst, with :key=value,…",
    ),
    seed_option,
    transform_options,
)  # fmt: skip
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
    click.option(
        "--telemetry-hz", default="10", show_default=True, metavar="HZ", help="Samples of the sensors; max or off."
    ),
)
output_options = _options(
    click.option("--keep-text", is_flag=True, help="Keep the prompts' text in plan.jsonl; default: lengths only."),
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
    options["workload"] = _transformed(options["workload"], options)
    job = prepare(obj.resolve_model(model), model=model, **options)
    for note in job.plan.notes:  # what was cut or skipped is said even with --quiet
        click.echo(f"note: {printable(note)}", err=True)
    manifest = run_profile(job.config, job.warmup, job.plan, Silent() if quiet else Terminal())
    _conclude(obj, job.config.out, failed=manifest.status != "complete", as_json=as_json, quiet=quiet)
    check_outcome(manifest, job.config.out)


def _transformed(spec: str, options: dict[str, Any]) -> str:
    """`spec` with the transforms given as options, which are taken out of `options`."""
    from profiler.workloads.options import with_options

    return with_options(spec, {name: options.pop(name) for name in TRANSFORMS})


@click.command()
@click.argument("spec", metavar="SPEC")
@click.option("--describe", is_flag=True, help="Rates, burstiness, lengths, and what a prefix cache could reuse.")
@seed_option
@transform_options
@click.option(
    "--context", type=click.IntRange(min=2), metavar="TOKENS", help="Cut to a model's context, as profile does."
)
@click.option(
    "--cache-tokens", type=click.IntRange(min=0), metavar="N", help="With --describe: reuse with such a cache."
)
@click.option("--cache-blocks", type=click.IntRange(min=0), metavar="N", help="The same in blocks of the log.")
@click.option("--limit", default=10, show_default=True, type=click.IntRange(min=1), help="Requests to print.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def workload(spec: str, seed: int, context: int | None, describe: bool, as_json: bool, **options: Any) -> None:
    """What a workload or a request log would send, before anything is run: SPEC as for profile --workload."""
    from profiler.workloads.preview import description_text, head_text

    spec = _transformed(spec, options)
    if describe:
        sizes = {name: options[name] for name in ("cache_tokens", "cache_blocks")}
        text = description_text(spec, seed, context_tokens=context, as_json=as_json, **sizes)
    else:
        text = head_text(spec, seed, context_tokens=context, limit=options["limit"], as_json=as_json)
    click.echo(text)


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
