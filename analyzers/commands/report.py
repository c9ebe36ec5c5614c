"""`report`: a run as one page."""

from __future__ import annotations

from pathlib import Path

import click

from analyzers.commands.options import echo_written, opened, plotly_option, run_argument


@click.command()
@run_argument
@click.option("--out", "-o", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True, metavar="FILE",
              help="The page; an existing one is replaced.")  # fmt: skip
@plotly_option
@click.option("--quiet", "-q", is_flag=True, help="Do not say how large it is.")
def report(run: str, out: Path, plotly: str, quiet: bool) -> None:
    """RUN as one HTML page that needs no network: verdict, time budget, roofline, timeline, requests, kernels.

    Its numbers are those of `summary --json`, its order is that of the questions people ask. What has no data says why.
    """
    from analyzers.report.page import page
    from analyzers.report.page_file import write_page
    from analyzers.report_model import read_report

    with opened(run) as store:
        values = read_report(store)
    size = write_page(out, page(values, plotly))
    echo_written(out)
    if not quiet:
        click.echo(f"{size / 1e6:.1f} MB", err=True)
