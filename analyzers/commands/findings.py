"""`findings`: what is worth a person's time in a run, the most time first."""

from __future__ import annotations

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, limit_option, opened, run_argument


@click.command()
@run_argument
@limit_option(20)
@json_option
def findings(run: str, limit: int, as_json: bool) -> None:
    """What costs RUN time, why, what it would gain to change it, and how to check that.

    --json: `findings`, rows of table findings with `proof` and `proved`, and `not_looked_at`; times in ns, shares of 1, unknown is null.
    """
    from analyzers.findings import read_findings
    from analyzers.report.findings_text import findings_lines

    with opened(run) as store:
        report = read_findings(store)
    echo_json(report.to_dict()) if as_json else echo_lines(findings_lines(report, run, limit=limit))
