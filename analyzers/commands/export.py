"""`export`: a run as a trace for Perfetto, as Parquet, as Prometheus text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzers.commands.options import echo_written, opened, run_argument
from traces.errors import UsageProblem
from traces.printable import for_stream, printable, utf8

if TYPE_CHECKING:
    from traces.store import TraceStore


@click.command()
@run_argument
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="FILE",
              help="Trace for Perfetto or chrome://tracing; compressed where it ends in .gz.")  # fmt: skip
@click.option("--overlay", is_flag=True, help="Only our own tracks in the trace, not the recording's kernels.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="DIR", help="Every table as a Parquet file.")
@click.option("--prometheus", is_flag=True, help="The summary in Prometheus' text format, on stdout.")
def export(run: str, out: Path | None, overlay: bool, parquet: Path | None, prometheus: bool) -> None:
    """RUN for other programs: a trace with steps, phases, bounds, idle causes, requests and power; tables; metrics.

    The trace opens in Perfetto (ui.perfetto.dev) and chrome://tracing, which read it in the browser.
    """
    if not (out or parquet or prometheus):
        raise UsageProblem("nothing to export", hint="-o trace.json.gz, --parquet DIR or --prometheus")
    if overlay and out is None:
        raise UsageProblem("--overlay is about the trace", hint="give -o trace.json.gz too")
    with opened(run) as store:
        if out is not None:
            _trace(store, out, overlay=overlay)
        if parquet is not None:
            _tables(store, parquet)
        if prometheus:
            _metrics(store)


def _trace(store: TraceStore, out: Path, *, overlay: bool) -> None:
    from analyzers.export import write_trace

    found = write_trace(store, out, overlay=overlay)
    echo_written(out)
    click.echo(f"{found.slices:,} slices, {found.counters:,} values of counters", err=True)
    if found.left_out:
        click.echo(f"warning: left out {found.left_out:,} slices whose times contradict their track's order", err=True)


def _tables(store: TraceStore, folder: Path) -> None:
    from analyzers.export import write_parquet

    rows = write_parquet(store, folder)
    click.echo(printable(utf8(str(folder))))
    click.echo(f"{len(rows)} tables, {sum(rows.values()):,} rows", err=True)


def _metrics(store: TraceStore) -> None:
    from analyzers.export_prometheus import prometheus_lines
    from analyzers.summary import summarize

    sys.stdout.write(for_stream("\n".join([*prometheus_lines(summarize(store)), ""]), sys.stdout))
