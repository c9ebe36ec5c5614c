"""`energy`: joules by state, phase, request; execution-idle."""

from __future__ import annotations

from typing import Any

import click

from analyzers.commands.options import echo_json, echo_lines, json_option, opened, run_argument, with_options

_energy_options = (
    click.option("--price", "price_per_kwh", type=click.FloatRange(min=0, max=1e6, min_open=True), metavar="PER_KWH",
                 help="Price of a kWh, in any currency."),
    click.option("--min-duration", "min_duration_s", type=click.FloatRange(min=0, max=1e9), metavar="S",
                 help="Shortest execution-idle that counts, beside none and 5 s."),
    click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Requests and sessions to list."),
    click.option("--assume-resident", is_flag=True,
                 help="A program held the devices wherever the samples do not say."),
    click.option("--baseline-w", type=click.FloatRange(min=0, max=1e5), metavar="W",
                 help="Power of a device with no program on it.  [default: as recorded, else the datasheet's]"),
    json_option,
)  # fmt: skip


@click.command()
@run_argument
@with_options(*_energy_options)
def energy(run: str, as_json: bool, **asked: Any) -> None:
    """Joules of RUN by state, phase, step kind and request; how long devices were execution-idle and what it cost.

    --json: `devices` (sensors of each), `states` (time and energy by min_duration_s; sum to the sampled time),
    `execution_idle` (intervals by min_duration_s; shares of execution-idle + active), `parts` (by phase and cause of
    idleness; sum to energy_j), `kinds`, `tokens`, `requests`, `sessions`, `windows` (idle by kernels and by sensors),
    `downclock` and `packing` (estimates), `study` (published figures, of its own cluster only), `withheld` (number → why).
    Times in ns, energy in J, `cost` in the currency of --price; unknown is null.
    """
    from analyzers.energy_reading import EnergyQuestion, read_energy
    from analyzers.report.energy_text import energy_lines

    with opened(run) as store:
        report = read_energy(store, EnergyQuestion(**asked))
    echo_json(report.to_dict()) if as_json else echo_lines(energy_lines(report))
