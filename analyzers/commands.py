"""Reading commands: what a run says, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """RUN: a .duckdb file or a run directory, `#run_id` behind it picks one of several runs."""
    return click.argument("run", metavar="RUN")(command)


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
@click.option("--model-config", metavar="PRESET|config.json", help="The model, where the recording does not say.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@click.pass_obj
def analyze(obj: Any, run: str, model_config: str | None, quiet: bool) -> None:
    """Compute everything that is derived from RUN's recording again."""
    from analyzers.pipeline import analyze_run

    path = analyze_run(run, obj.model_config(model_config))
    if not quiet:
        click.echo(f"analyzed {path}", err=True)




def csv_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--csv: every row, a header line first."""
    return click.option("--csv", "as_csv", is_flag=True, help="Every row as CSV.")(command)


def limit_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--limit: rows of the terminal table."""
    return click.option("--limit", type=click.IntRange(min=1), default=default, show_default=True, help="Rows to print.")


def echo_rows(rows: Any, lines: Callable[[], list[str]], *, as_json: bool, as_csv: bool = False) -> None:
    """A frame as JSON, CSV, or the lines of its table."""
    if as_json:
        echo_json(rows.to_dicts())
    elif as_csv:
        click.echo(rows.write_csv(), nl=False)
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
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
        rows = readings.steps(store, kind)
    echo_rows(rows, lambda: steps_lines(rows, limit), as_json=as_json, as_csv=as_csv)


@click.command()
@run_argument
@json_option
def phases(run: str, as_json: bool) -> None:
    """Device time, tokens and cost per token of prefill and decode, alone and mixed; what prefill does to decoding."""
    from analyzers import readings
    from analyzers.report.readings_text import phases_lines
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
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
    from traces.store import TraceStore

    with TraceStore.open(run) as store:
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
    from traces.store import TraceStore

    if slowest and request_id:
        raise click.UsageError("--slowest and --id exclude each other")
    selection = Selection(pass_name=pass_name, request_id=request_id, slowest=slowest or 5)
    with TraceStore.open(run) as store:
        report = read_requests(store, selection)
    lines = request_lines if request_id else requests_lines
    echo_json(report.to_dict()) if as_json else click.echo("\n".join(lines(report)))
