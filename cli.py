"""The `stepscope` command: the root group, loading each package's commands on use, and what spans packages."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from traces.ending import Ending, Terminated
from traces.errors import StepscopeError
from traces.printable import printable
from traces.streams import give_up_stdout, is_failure, open_streams

# command: (module, attribute, one line for --help). Listed here so that `--help` imports no package.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "profile": ("profiler.commands", "profile", "Start an engine, run a workload, record it, say where the time went."),
    "workload": ("profiler.commands", "workload", "What a workload or a request log would send, without a run."),
    "ingest": ("traces.commands", "ingest", "Read trace files or a run directory into a database."),
    "summary": ("analyzers.commands.reading", "summary", "Where the time went, in one table."),
    "steps": ("analyzers.commands.reading", "steps", "Engine steps with kind, phases and tokens."),
    "phases": ("analyzers.commands.reading", "phases", "Time and cost of prefill and decode."),
    "kernels": ("analyzers.commands.reading", "kernels", "Device time by kernel, category, operator or step kind."),
    "roofline": (
        "analyzers.commands.reading",
        "roofline",
        "Compute or memory, and how far from the roof: FLOPs, bytes, MFU, MBU.",
    ),
    "idle": ("analyzers.commands.idle", "idle", "Why the device had nothing to do, and what would hide it."),
    "requests": ("analyzers.commands.reading", "requests", "Requests, and what made the slow ones slow."),
    "energy": ("analyzers.commands.energy", "energy", "Joules by state, phase and request; execution-idle."),
    "agents": ("analyzers.commands.agents", "agents", "What an agent's turns re-read, why, and what it costs."),
    "findings": ("analyzers.commands.findings", "findings", "What is worth changing, and what it would gain."),
    "prove": ("analyzers.commands.prove", "prove", "Run a finding's change: does its gain hold?"),
    "report": ("analyzers.commands.report", "report", "The run as one HTML page that works offline."),
    "compare": (
        "analyzers.commands.compare",
        "compare",
        "What differs between runs, and what of it is more than noise.",
    ),
    "health": ("analyzers.commands.reading", "health", "What the recording can and cannot carry."),
    "predict": ("analyzers.commands.predict", "predict", "What to expect of a model on a device, with no run."),
    "agentlog": ("analyzers.commands.agentlog", "agentlog", "What agents re-read, from their logs alone."),
    "calibrate": ("profiler.commands", "calibrate", "Measure what this machine reaches."),
    "analyze": ("analyzers.commands.reading", "analyze", "Compute everything that is derived again."),
    "export": ("analyzers.commands.export", "export", "A trace for Perfetto, tables as Parquet, Prometheus text."),
    "explain": ("analyzers.commands.explain", "explain", "What a term, a column, a check or a finding means."),
    "query": ("traces.commands", "query", "Run SQL against a run database."),
    "info": ("traces.commands", "info", "Runs, files and tables of a database."),
    "doctor": ("profiler.commands", "doctor", "Check engine, GPU, sensors and disk, with remedies."),
}


_LAYOUT = "\n\t"


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        for parameter in command.params:
            if isinstance(parameter.type, click.types.FloatParamType) and parameter.callback is None:
                parameter.callback = _finite
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our output that goes away (`| head`) is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            give_up_stdout()
            return None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _finite(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The callback of every option that takes a number: 'nan' and 'inf' pass the limits of click's ranges."""
    for item in value if isinstance(value, tuple) else (value,):
        if item is not None and not math.isfinite(item):
            raise click.BadParameter(f"{item} is not a number to compute with.", ctx=ctx, param=parameter)
    return value


class Composition:
    """What spans packages, handed to commands as `ctx.obj`: presets, and what follows a capture or an ingest."""

    def resolve_model(self, name: str) -> dict[str, Any] | None:
        """The configuration of a built-in preset; None where `name` is none (a path or hub id)."""
        from analyzers.presets import preset

        return preset(name)

    def preset_names(self) -> list[str]:
        """Names of the built-in presets."""
        from analyzers.presets import preset_names

        return preset_names()

    def model_config(self, name: str | None) -> dict[str, Any] | None:
        """What `--model-config PRESET|config.json` names; None where it is not given."""
        from analyzers.presets import model_config

        return None if name is None else model_config(name)

    def given(
        self, *, model_config: str | None = None, gpu: str | None = None, peak_flops: str | None = None,
        bandwidth: str | None = None, capture: Path | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What the options of an analysis mean, as keyword arguments of analyzers.pipeline.analyze."""
        from analyzers.hardware import peak_override
        from traces.capture import read_captures

        return {
            "model_config": self.model_config(model_config),
            "peaks": peak_override(gpu, peak_flops, bandwidth),
            "captures": None if capture is None else read_captures(capture),
        }

    def analysis(self, **options: Any) -> Any:
        """The analysis that follows linking, as `ingest` takes it; `options` as for `given`."""
        from functools import partial

        from analyzers.pipeline import analyze

        return partial(analyze, **self.given(**options))

    def arrivals(self, spec: str, seed: int = 0, **options: object) -> Any:
        """The arrivals of a workload, as `profiler.workloads.arrivals.Arrivals`; `options` are further key=value of it."""
        from profiler.workloads.arrivals import planned_arrivals

        return planned_arrivals(spec, seed, **options)

    def prove(self, run: str, finding_id: str, *, rounds: int, out: Path | None, quiet: bool, **how: Any) -> Any:
        """Run a finding's change against the run as it was and keep the verdict (analyzers.verdict.Verdict) in its database.

        `how`: what `profiler.prove.repeat_of` takes of the caller.
        """
        from analyzers.proof import check_writable, conclude, read_case
        from profiler.invocation import default_out
        from profiler.progress import Silent, Terminal
        from profiler.prove import repeat_of, run_proof
        from traces.store import TraceStore

        with TraceStore.open(run) as store:
            case, path, run_id = read_case(store, finding_id), store.path, store.run_id
        check_writable(path)
        preset = self.resolve_model(str(case.config["model"]))
        repeat = repeat_of(case.config, preset, case.change.to_dict(), **how)
        directory = out or default_out(f"prove-{finding_id}", repeat.workload)
        made = run_proof(repeat, rounds=rounds, out=directory, observer=Silent() if quiet else Terminal())
        return conclude(case, made, directory, path, run_id)

    def finish(self, run_dir: Any, *, as_json: bool, quiet: bool) -> None:
        """Ingest a run directory and print its summary."""
        from analyzers.commands.reading import print_summary
        from traces.commands import ingest_paths

        target = run_dir / "run.duckdb"
        ingest_paths([str(run_dir)], target, finish=self.analysis(), quiet=quiet)
        print_summary(str(target), as_json=as_json)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="stepscope", message="%(prog)s %(version)s")
@click.pass_context
def stepscope(ctx: click.Context) -> None:
    """Where the time of a vLLM or SGLang server goes: per phase, step, kernel and request."""
    ctx.obj = Composition()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Console entry: the one place where a user's mistake becomes `error:` and `hint:` lines and an exit code."""
    open_streams()
    ending = Ending()
    try:
        with ending:
            result = stepscope.main(args=arguments, prog_name="stepscope", standalone_mode=False)
    except StepscopeError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        usage = f"see `{error.ctx.command_path} --help`" if error.ctx else ""
        _complain(error.format_message(), usage)
        sys.exit(2)
    except click.ClickException as error:
        _complain(error.format_message(), "")
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, Terminated):
        word, code = ending.said
        _complain(word, "")
        sys.exit(code)
    except OSError as error:
        if not is_failure(error):
            raise
        give_up_stdout()
        _complain(f"cannot write the output: {error.strerror}", "free space, or send it elsewhere")
        sys.exit(2)
    sys.exit(result if isinstance(result, int) else 0)


def _complain(message: str, hint: str) -> None:
    with contextlib.suppress(OSError):  # where stderr cannot be written either, the exit code tells
        for word, text in (("error", message), ("hint", hint)):
            if text:
                click.echo(f"{word}: {printable(text, keep=_LAYOUT)}", err=True)


if __name__ == "__main__":
    main()
