"""`explain`: what a term, a column, a check or a finding means."""

from __future__ import annotations

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, opened


@click.command()
@click.argument("term", metavar="[TERM|FINDING_ID]", required=False)
@click.argument("run", metavar="[RUN]", required=False)
@json_option
def explain(term: str | None, run: str | None, as_json: bool) -> None:
    """What TERM means: a word of the reports, a table or column, a health check, a finding. Without TERM: every term.

    With RUN also what that run has of it: the finding with its evidence, the check with its status.
    """
    from analyzers.explain import explain as look_up
    from analyzers.report.explain_text import explain_lines

    if run is None:
        found = look_up(term)
    else:
        with opened(run) as store:
            found = look_up(term, store)
    echo_json(found.to_dict()) if as_json else echo_lines(explain_lines(found))
