"""Reading commands: what a run says, as a table or JSON."""

from __future__ import annotations

from typing import Any

import click

from analyzers.commands.options import (
    csv_option,
    echo_json,
    echo_lines,
    echo_rows,
    json_option,
    limit_option,
    opened,
    run_argument,
)
from traces.commands import analysis_options


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
        echo_lines(summary_lines(result))


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
    from traces.damage import reading
    from traces.store import split_run

    given = obj.given(**analysis)
    with reading(split_run(run)[0]):
        path = analyze_run(run, **given)
    if not quiet:
        click.echo(f"analyzed {path}", err=True)


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
    echo_json(data) if as_json else echo_lines(phases_lines(data))


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
    echo_json(report.to_dict()) if as_json else echo_lines(lines(report))


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
    echo_json(data) if as_json else echo_lines(roofline_lines(data, limit))
