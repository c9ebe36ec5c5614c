"""Reading commands: what a run says, as a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from traces.commands import analysis_options
from traces.printable import for_stream

if TYPE_CHECKING:
    from traces.store import TraceStore

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """RUN: a .duckdb file or a run directory, `#run_id` behind it picks one of several runs."""
    return click.argument("run", metavar="RUN")(command)


@contextmanager
def opened(run: str) -> Iterator[TraceStore]:
    """The store of RUN; what its recording cannot carry is said on stderr when the command is done."""
    from analyzers import readings
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
        yield store
        notes = readings.health_notes(store)
    for line in notes:
        click.echo(line, err=True)


def echo_json(data: Any) -> None:
    """Data on stdout as JSON."""
    click.echo(json.dumps(data, indent=2, default=str))


def print_summary(run: str, *, as_json: bool) -> None:
    """Print the summary of a run."""
    from analyzers.report.terminal import summary_lines
    from analyzers.summary import summarize
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
        result = summarize(store)
    if as_json:
        echo_json(result.to_dict())
    else:
        click.echo("\n".join(summary_lines(result)))


@click.command()
@run_argument
@json_option
def summary(run: str, as_json: bool) -> None:
    """Where the time of RUN went: phases, step kinds, categories, latency, cache, cost of recording."""
    print_summary(run, as_json=as_json)


@click.command()
@run_argument
@analysis_options
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@click.pass_obj
def analyze(obj: Any, /, run: str, quiet: bool, **analysis: Any) -> None:
    """Compute everything that is derived from RUN's recording again."""
    from analyzers.pipeline import analyze_run

    path = analyze_run(run, **obj.given(**analysis))
    if not quiet:
        click.echo(f"analyzed {path}", err=True)


def csv_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--csv: every row, a header line first."""
    return click.option("--csv", "as_csv", is_flag=True, help="Every row as CSV.")(command)


def limit_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--limit: rows of the terminal table."""
    return click.option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=True, help="Rows to print."
    )


def echo_rows(rows: Any, lines: Callable[[], list[str]], *, as_json: bool, as_csv: bool = False) -> None:
    """A frame as JSON, CSV, or the lines of its table."""
    if as_json:
        echo_json(rows.to_dicts())
    elif as_csv:
        sys.stdout.write(for_stream(rows.write_csv(), sys.stdout))  # click.echo takes escape sequences out of data
    else:
        click.echo("\n".join(lines()))


@click.command()
@run_argument
@click.option("--kind", type=click.Choice(["prefill", "decode", "mixed", "other"]), help="Only steps of one kind.")
@limit_option(40)
@json_option
@csv_option
def steps(run: str, kind: str | None, limit: int, as_json: bool, as_csv: bool) -> None:
    """Engine steps of RUN in order: kind, device time by phase with its interval, tokens."""
    from analyzers import readings
    from analyzers.report.readings_text import steps_lines

    with opened(run) as store:
        rows = readings.steps(store, kind)
    echo_rows(rows, lambda: steps_lines(rows, limit), as_json=as_json, as_csv=as_csv)


@click.command()
@run_argument
@json_option
def phases(run: str, as_json: bool) -> None:
    """Device time, tokens and cost per token of prefill and decode, alone and mixed; what prefill does to decoding."""
    from analyzers import readings
    from analyzers.report.readings_text import phases_lines

    with opened(run) as store:
        data = readings.phases(store)
    echo_json(data) if as_json else click.echo("\n".join(phases_lines(data)))


@click.command()
@run_argument
@click.option(
    "--by", type=click.Choice(["name", "category", "op", "step-kind"]), default="name", show_default=True, help="Group."
)
@limit_option(30)
@json_option
@csv_option
def kernels(run: str, by: str, limit: int, as_json: bool, as_csv: bool) -> None:
    """Device time of RUN by kernel name, category, launching operator or step kind."""
    from analyzers import readings
    from analyzers.report.readings_text import kernels_lines

    with opened(run) as store:
        rows = readings.kernels(store, by)
    echo_rows(rows, lambda: kernels_lines(rows, by, limit), as_json=as_json, as_csv=as_csv)


@click.command()
@run_argument
@json_option
def health(run: str, as_json: bool) -> None:
    """What the recording of RUN can carry: every check, and which numbers are withheld for what reason."""
    from analyzers import readings
    from analyzers.report.readings_text import health_lines
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
        rows = readings.health(store)
    echo_rows(rows, lambda: health_lines(rows), as_json=as_json)


@click.command()
@run_argument
@click.option("--slowest", type=click.IntRange(min=1), help="Requests to list, the slowest first.  [default: 5]")
@click.option("--id", "request_id", metavar="ID", help="One request, by the client's id or the engine's.")
@click.option(
    "--pass", "pass_name", type=click.Choice(["control", "profiled", "warmup", "all"]),
    help="Requests of one pass.  [default: control, where nothing was recorded]",
)  # fmt: skip
@json_option
def requests(run: str, slowest: int | None, request_id: str | None, pass_name: str | None, as_json: bool) -> None:
    """Latency of RUN's requests, what their time went to, and what made the slow ones slow.

    --json: `latency` (n and percentiles per term), `terms` (the slow requests against the middle ones), `parts` (the
    same by part; the parts of a term sum to it), `requests` (the listed ones, with their parts as `<part>_ns`), `unknown`
    (why parts are not known). Times in ns; unknown is null.
    """
    from analyzers.report.requests_text import request_lines, requests_lines
    from analyzers.requests import Selection, read_requests

    if slowest and request_id:
        raise click.UsageError("--slowest and --id exclude each other")
    selection = Selection(pass_name=pass_name, request_id=request_id, slowest=slowest or 5)
    with opened(run) as store:
        report = read_requests(store, selection)
    lines = request_lines if request_id else requests_lines
    echo_json(report.to_dict()) if as_json else click.echo("\n".join(lines(report)))


_COUNT = click.IntRange(min=1)
_RATE = click.FloatRange(min=0, min_open=True)
peak_options = (
    click.option("--gpu", metavar="NAME", help="Device to take datasheet peaks of."),
    click.option("--peak-flops", metavar="RATE", help="Instead of the datasheet's, such as 990T."),
    click.option("--bandwidth", metavar="RATE", help="Instead of the datasheet's, such as 3.35TB/s."),
)
_predict_options = (
    click.option("--model", "--model-config", required=True, metavar="PRESET|config.json", help="Model."),
    *peak_options,
    click.option("--prompt", type=_COUNT, default=2048, show_default=True, help="Tokens of the prompt."),
    click.option("--context", type=_COUNT, help="Tokens a decoding request attends to.  [default: the prompt]"),
    click.option("--batch", type=_COUNT, default=1, show_default=True, help="Requests that decode together."),
    click.option("--output", type=_COUNT, default=128, show_default=True, help="Tokens generated per request."),
    click.option("--tp", "tensor_parallel", type=_COUNT, default=1, show_default=True, help="Tensor parallel devices."),
    click.option("--pp", "pipeline_parallel", type=_COUNT, default=1, show_default=True, help="Pipeline stages."),
    click.option("--ep", "expert_parallel", type=_COUNT, default=1, show_default=True,
                 help="Devices of a stage that whole experts are divided over; of those of --tp and --dp."),
    click.option("--dp", "data_parallel", type=_COUNT, default=1, show_default=True,
                 help="Replicas, each with --batch requests."),
    click.option("--link-bandwidth", metavar="RATE",
                 help="Of a device to others, in one direction, such as 450GB/s.  [default: the datasheet's]"),
    click.option("--quant", type=click.Choice(["fp8", "int8", "int4", "mxfp4", "nvfp4", "none"]), help="Of the weights."),
    click.option("--dtype", help="Of activations and unquantized weights.  [default: the configuration's]"),
    click.option("--kv-dtype", help="Of the cache, such as fp8.  [default: as --dtype]"),
    click.option("--turns", type=_COUNT, help="Turns of a growing conversation."),
    click.option("--per-turn", type=_COUNT, default=200, show_default=True, help="Tokens a turn adds to the prompt."),
    click.option("--prefill-rate", type=_RATE, help="Tokens/s to take for TTFT per turn, instead of the floor."),
    click.option("--decode-rate", type=_RATE, help="Tokens/s of a request, likewise."),
    click.option("--add-prefill", "beside", type=_COUNT, multiple=True, help="Prefill tokens beside a decode step."),
    click.option("--price", type=_RATE, help="Of a device per hour."),
    click.option("--train-tokens", metavar="N", help="Cost of training on so many tokens, such as 160B."),
    click.option("--params", "parameters", metavar="N", help="Textbook: the model's round size.  [default: by name]"),
    click.option("--memory-share", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True,
                 help="Of the device's memory, for weights and cache."),
    click.option("--convention", type=click.Choice(["default", "textbook"]), default="default", show_default=True,
                 help="How to count; see docs/predict.md."),
    json_option,
)  # fmt: skip


@click.command()
@run_argument
@click.option("--by", type=click.Choice(["kernel", "category", "step", "phase"]), default="category", show_default=True,
              help="What a row is.")  # fmt: skip
@limit_option(25)
@json_option
@click.option("--gpu", metavar="NAME", help="Device to measure against, for this reading.")
@click.option("--peak-flops", metavar="RATE", help="FLOP/s to measure against, such as 990T.")
@click.option("--bandwidth", metavar="RATE", help="Bytes/s to measure against, such as 3.35TB/s.")
def roofline(run: str, by: str, limit: int, as_json: bool, **peaks: str | None) -> None:
    """Compute or memory side, distance to the roof, MFU and MBU of RUN: by kernel, category, step or phase."""
    from analyzers.hardware import peak_override
    from analyzers.report.roofline_text import roofline_lines
    from analyzers.roofline_reading import read_roofline

    with opened(run) as store:
        data = read_roofline(store, by, peak_override(**peaks))
    echo_json(data) if as_json else click.echo("\n".join(roofline_lines(data, limit)))


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@_with(*_predict_options)
def predict(as_json: bool, **words: Any) -> None:
    """What to expect of a model on a device, with no run: floors of time, memory, batches, turns, price."""
    from dataclasses import asdict

    from analyzers.report.predict_text import predict_lines
    from analyzers.scenario import asked, expect

    expected = expect(*asked(words))
    echo_json(asdict(expected)) if as_json else click.echo("\n".join(predict_lines(expected)))
