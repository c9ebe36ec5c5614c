"""`compare`: what differs between runs, and what of it is more than noise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, limit_option, plotly_option
from traces.errors import UsageProblem
from traces.printable import printable, utf8

if TYPE_CHECKING:
    from analyzers.compare import Comparison

_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*%", re.ASCII)


def _share(text: str | None, option: str) -> float | None:
    """`5%` as 0.05. Raises UsageProblem: a bare number could mean either."""
    if text is None:
        return None
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise UsageProblem(f"cannot read {option} {text}", hint=f"a share in percent: {option} 5%")
    return float(match[1]) / 100


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("candidates", metavar="CAND...", nargs=-1, required=True)
@click.option(
    "--gate",
    metavar="SHARE",
    help="Exit 6 where latency, throughput, steps or phases are worse by more than this, such as 5%.",
)
@click.option(
    "--drift",
    metavar="SHARE",
    help="What equal passes may differ by on this machine.  [default: 30%, more where they are short]",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), metavar="FILE",
              help="Write it as one HTML page too, such as page.html; an existing one is replaced.")  # fmt: skip
@plotly_option
@limit_option(8)
@json_option
def compare(
    base: str, candidates: tuple[str, ...], gate: str | None, drift: str | None, out: Path | None, plotly: str, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    """What differs between BASE and each CAND: capture, configuration, hardware, workload, and what of the numbers is more than noise.

    A side is PATH[#run_id][@pass,pass…], several joined by `+`; passes and runs of one side are repeats of the same thing, and a
    pass may be a pattern (`run@a*`). Without @: the control pass, else all passes. Docs: docs/compare.md.

    --json: `pairs` (per candidate `differences`, `rows` with verdict, change and interval, `cautions`), `tripped`, `confidence`.
    Times in ns, changes as shares of 1 (of shares: their difference), unknown is null.
    """
    from analyzers.compare import GateTripped, Question, compare
    from analyzers.report.compare_text import compare_lines

    question = Question(gate=_share(gate, "--gate"), drift=_share(drift, "--drift"))
    result = compare(base, candidates, question)
    if out is None or _write(out, result, plotly):
        echo_json(result.to_dict()) if as_json else echo_lines(compare_lines(result, limit=limit))
    if result.tripped:
        raise GateTripped(
            f"the gate of {gate} tripped: {'; '.join(result.tripped[:5])}", hint="see the rows that are worse"
        )


def _write(out: Path, result: Comparison, plotly: str) -> bool:
    """The page, and on stderr how large it is; whether stdout is still free. Raises UsageProblem where it cannot be written."""
    from analyzers.report.page_compare import comparison_page
    from analyzers.report.page_file import write_page

    size = write_page(out, comparison_page(result, plotly))
    click.echo(f"{printable(utf8(str(out)))}: {size / 1e6:.1f} MB", err=True)
    stdout = Path("/dev/stdout")
    return not (stdout.exists() and out.samefile(stdout))
