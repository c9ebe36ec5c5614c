"""Commands on files and databases: ingest, query, info."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

_ANALYSIS = (
    click.option("--model-config", metavar="PRESET|config.json", help="The model, where the recording does not say."),
    click.option("--gpu", metavar="NAME", help="Device to take peaks of, where the recording does not say."),
    click.option("--peak-flops", metavar="RATE", help="FLOP/s of the device, such as 990T."),
    click.option("--bandwidth", metavar="RATE", help="Bytes/s of its memory, such as 3.35TB/s."),
    click.option(
        "--capture", type=click.Path(path_type=Path), metavar="DIR", help="Graph-capture traces of this engine."
    ),
)


def analysis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What an analysis may be told: the model, the device's peaks, the capture of graphs."""
    for option in reversed(_ANALYSIS):
        command = option(command)
    return command


def ingest_paths(
    paths: Sequence[str], target: Path, *, finish: Any, quiet: bool, name: str | None = None, stacks: bool = False,
    utc_offset: str | None = None, sensor_interval_s: float | None = None,
) -> Any:  # fmt: skip
    """Ingest with progress on stderr; returns the IngestReport."""
    from traces.clock import NS_PER_S, utc_offset_ns
    from traces.ingest import IngestOptions, ingest_once
    from traces.progress import IngestProgress

    with IngestProgress(quiet=quiet) as progress:
        options = IngestOptions(
            name=name, stacks=stacks, progress=progress.update, finish=finish,
            utc_offset_ns=None if utc_offset is None else utc_offset_ns(utc_offset),
            sensor_interval_ns=None if sensor_interval_s is None else round(sensor_interval_s * NS_PER_S),
        )  # fmt: skip
        report = ingest_once(paths, target, options)
    if not quiet:
        for line in progress.describe(report):
            click.echo(line, err=True)
    return report


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Database to write or append to.")
@click.option("--name", help="What to call the run.")
@click.option("--stacks", is_flag=True, help="Keep every Python frame (three quarters of many files).")
@click.option("--no-analyze", is_flag=True, help="Link only; fill derived tables later with `analyze`.")
@analysis_options
@click.option("--utc-offset", metavar="+HH:MM", help="Of the local times in sensor logs; default: taken as UTC.")
@click.option(
    "--sensor-interval",
    "sensor_interval_s",
    metavar="S",
    type=click.FloatRange(0.001, 3600),
    help="Seconds between samples of dmon logs without times; default: 1.",
)
@click.option("--strict", is_flag=True, help="Exit 5 when health checks withhold a number.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@click.pass_obj
def ingest(
    obj: Any, /, paths: tuple[str, ...], out: Path | None, name: str | None, stacks: bool, no_analyze: bool,
    strict: bool, quiet: bool, utc_offset: str | None, sensor_interval_s: float | None, **analysis: Any,
) -> None:  # fmt: skip
    """Read traces (torch profiler JSON, Nsight SQLite), sensor logs, or a run directory into a database."""
    from traces.ingest import default_target
    from traces.strict import refuse_withheld

    target = out or default_target(paths)
    finish = None if no_analyze else obj.analysis(**analysis)
    report = ingest_paths(
        paths, target, finish=finish, quiet=quiet, name=name, stacks=stacks, utc_offset=utc_offset,
        sensor_interval_s=sensor_interval_s,
    )  # fmt: skip
    click.echo(f"{target}#{report.run_id}")
    if strict:
        refuse_withheld(target, report.run_id)


@click.command()
@click.argument("run")
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of row objects.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a header line.")
def query(run: str, sql: str, as_json: bool, as_csv: bool) -> None:
    """Run SQL against RUN (a .duckdb file or run directory, `#run_id` behind it picks one of several)."""
    from traces.query import run_query

    form = "json" if as_json else "csv" if as_csv else "table"
    run_query(run, sql, form, sys.stdout)


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def info(run: str, as_json: bool) -> None:
    """Runs, files and row counts of RUN."""
    from traces.query import describe_database

    describe_database(run, sys.stdout, as_json=as_json)
