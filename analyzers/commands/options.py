"""Options and output that reading commands share."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traces.printable import for_stream, printable, utf8

if TYPE_CHECKING:
    from traces.store import TraceStore

COUNT = click.IntRange(min=1)
RATE = click.FloatRange(min=0, min_open=True)
peak_options = (
    click.option("--gpu", metavar="NAME", help="Device to take datasheet peaks of."),
    click.option("--peak-flops", metavar="RATE", help="Instead of the datasheet's, such as 990T."),
    click.option("--bandwidth", metavar="RATE", help="Instead of the datasheet's, such as 3.35TB/s."),
)
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")

plotly_option = click.option(
    "--plotly", type=click.Choice(["inline", "cdn"]), default="inline", show_default=True,
    help="Carry plotly.js in the page, or load it from plotly's server (2 MB less, needs a network).",
)  # fmt: skip


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
        click.echo(printable(str(line)), err=True)


def echo_json(data: Any) -> None:
    """Data on stdout as JSON, which has no NaN: a number that is not finite is null."""
    click.echo(json.dumps(_finite(data), indent=2, default=str, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(item) for item in data]
    return data


def echo_lines(lines: Iterable[str]) -> None:
    """Lines on stdout. Whatever of a recording is in them, it does not steer the terminal."""
    click.echo("\n".join(printable(line) for line in lines))


def echo_written(out: Path) -> None:
    """Where a file went. Nothing where it went through a link, a device or a pipe: that may be stdout itself."""
    if out.is_file() and not out.is_symlink():
        click.echo(printable(utf8(str(out))))


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
        echo_lines(lines())


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
