"""`idle`: why the device had nothing to do; with --simulate, how much of that is to be expected of a pool of servers."""

from __future__ import annotations

from typing import Any

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, opened
from analyzers.commands.simulate import run_simulation, simulate_options

LIMIT = 10


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--min-us", type=click.IntRange(0, 10**12), help="Leave out shorter pieces, in µs.  [default: 0]")
@click.option("--by", type=click.Choice(["cause", "step-kind", "size"]), help="What a row is.  [default: cause]")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Longest pieces to list, or rows of a simulation.  [default: 10, 20]"
)
@json_option
@simulate_options
@click.pass_obj
def idle(
    obj: Any, /, run: str | None, min_us: int | None, by: str | None, limit: int | None, as_json: bool, spec: str | None, **words: Any
) -> None:  # fmt: skip
    """Idle time of RUN's devices by cause, what surrounds the longest pieces, and what would hide each cause.

    --json: `devices` (window = busy + idle + unrecorded), `groups`, `sizes` (a histogram by powers of ten), `worst` (the longest
    --limit pieces with their evidence), `hiding` (per cause, who has to do less and how much), `withheld` (number → why).

    With --simulate there is no RUN: the requests of SPEC meet a pool of servers of --model on --gpu.
    """
    if spec is not None:
        if run is not None or min_us is not None or by is not None:
            raise click.UsageError("--simulate goes without RUN, --min-us and --by")
        run_simulation(obj, spec, as_json=as_json, **({} if limit is None else {"limit": limit}), **words)
        return
    if run is None:
        raise click.UsageError("Missing argument 'RUN', or --simulate SPEC")
    if any(value is not None for value in words.values()):
        raise click.UsageError("options of a simulation need --simulate SPEC")
    _print_idle(run, min_us or 0, by or "cause", limit or LIMIT, as_json=as_json)


def _print_idle(run: str, min_us: int, by: str, limit: int, *, as_json: bool) -> None:
    from analyzers.idle_reading import read_idle
    from analyzers.report.idle_text import idle_lines

    with opened(run) as store:
        report = read_idle(store, by=by, min_ns=min_us * 1000, limit=limit)
    echo_json(report.to_dict()) if as_json else echo_lines(idle_lines(report))
