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
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def analyze(run: str, quiet: bool) -> None:
    """Compute everything that is derived from RUN's recording again."""
    from analyzers.pipeline import analyze_run

    path = analyze_run(run)
    if not quiet:
        click.echo(f"analyzed {path}", err=True)
