"""`agents`: what every turn of an agent's loop re-reads, why, and what it costs."""

from __future__ import annotations

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, limit_option, opened, run_argument


@click.command()
@run_argument
@click.option(
    "--by", type=click.Choice(["session", "turn"]), default="session", show_default=True, help="What a row is."
)
@click.option("--pass", "pass_name", help="Requests of one pass.  [default: profiled, where device time is known]")
@limit_option(20)
@json_option
def agents(run: str, by: str, pass_name: str | None, limit: int, as_json: bool) -> None:
    """What every turn of RUN's sessions re-read: cached, fresh, re-sent and lost tokens, why, and their device time.

    --json: `healthy`, `total`, `causes`, `sessions`, `turns`, `growth`, `cache`; times in ns, unknown is null.
    """
    from analyzers.agents_reading import read_agents
    from analyzers.report.agents_text import agents_lines

    with opened(run) as store:
        report = read_agents(store, pass_name)
    echo_json(report.to_dict()) if as_json else echo_lines(agents_lines(report, by=by, limit=limit))
