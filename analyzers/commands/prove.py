"""`prove`: run a finding's change against the run as it was, and say whether its prediction holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, run_argument


@click.command()
@run_argument
@click.argument("finding_id", default="none", metavar="[FINDING_ID]")
@click.option(
    "--rounds", type=click.IntRange(2, 20), default=2, show_default=True, help="Passes of each side that count."
)
@click.option(
    "--python", type=click.Path(path_type=Path), help="Interpreter of the engine's environment; default: this one."
)
@click.option(
    "--engine-env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable for the engines alone, of both sides.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory for the passes; default: runs/<time>-prove-…")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@json_option
@click.pass_obj
def prove(obj: Any, /, run: str, finding_id: str, as_json: bool, **options: Any) -> None:
    """Run RUN as it was (A) and with the change of a finding (B) in turns, and compare with what was predicted.

    Without FINDING_ID (or with `none`) RUN is compared with itself, which must make no difference. The result is kept in
    the database of RUN. It starts the model with the arguments that RUN names: only for runs you trust. Exit 0 whatever
    the verdict; 5 where RUN cannot be run again.
    """
    from analyzers.report.findings_text import verdict_lines

    verdict = obj.prove(run, finding_id, **options)
    echo_json(verdict.to_dict()) if as_json else echo_lines(verdict_lines(verdict))
