"""`idle --simulate`: options and output of a simulation. The command itself is in commands/idle.py."""

from __future__ import annotations

from typing import Any

import click

from analyzers.commands.options import COUNT, echo_json, echo_lines, with_options

_SHARE = click.FloatRange(0, 1, min_open=True)
_POWER = click.FloatRange(min=0, max=100_000)

simulate_options = with_options(
    click.option("--simulate", "spec", metavar="SPEC", help="No run: simulate these requests, such as replay:path=LOG or poisson:rate=2."),
    click.option("--model", metavar="PRESET|config.json", help="Simulation: model."),
    click.option("--gpu", metavar="NAME", help="Simulation: device."),
    click.option("--pool", type=click.IntRange(1, 10_000), help="Simulation: servers the requests are divided over.  [default: 1]"),
    click.option("--tp", "tensor_parallel", type=COUNT, help="Simulation: devices of a server.  [default: 1]"),
    click.option("--route", type=click.Choice(["affinity", "random", "round-robin"]),
                 help="Simulation: what stays on one server: sessions and common prompts; sessions.  [default: affinity]"),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Simulation: of arrivals and route.  [default: 0]"),
    click.option("--minutes", type=click.FloatRange(0.1, 44_640),
                 help="Simulation: window from the first arrival.  [default: until all is done]"),
    click.option("--efficiency", type=click.FloatRange(0.01, 1),
                 help="Simulation: roof time / time of a step.  [default: 0.6, assumed]"),
    click.option("--host-overhead-us", type=click.FloatRange(0, 1e6),
                 help="Simulation: host time per step, the device idle.  [default: 500, assumed]"),
    click.option("--max-num-batched-tokens", type=click.IntRange(1, 1 << 24),
                 help="Simulation: tokens of a step.  [default: as vLLM takes it on the device]"),
    click.option("--max-num-seqs", type=click.IntRange(1, 1 << 16),
                 help="Simulation: running requests.  [default: as vLLM takes it on the device]"),
    click.option("--max-model-len", type=COUNT, help="Simulation: longer prompts are refused.  [default: none is]"),
    click.option("--memory-share", type=_SHARE, help="Simulation: of the device, for weights and cache.  [default: 0.9]"),
    click.option("--kv-tokens", type=click.IntRange(1, 1 << 40), help="Simulation: room of the cache.  [default: what is left]"),
    click.option("--no-prefix-caching", "prefix_caching", flag_value=False, default=None, help="Simulation: prompts share nothing."),
    click.option("--quant", type=click.Choice(["fp8", "int8", "int4", "mxfp4", "nvfp4", "none"]), help="Simulation: of the weights."),
    click.option("--dtype", help="Simulation: of activations and unquantized weights."),
    click.option("--kv-dtype", help="Simulation: of the cache, such as fp8."),
    click.option("--link-bandwidth", metavar="RATE", help="Simulation: between devices of a server, such as 450GB/s."),
    click.option("--idle-watts", type=_POWER, help="Simulation: a device with nothing to do.  [default: where known]"),
    click.option("--active-watts", type=_POWER, help="Simulation: a device while a step runs.  [default: its limit]"),
)  # fmt: skip


def run_simulation(obj: Any, spec: str, *, as_json: bool = False, limit: int = 20, **words: Any) -> None:
    """Simulate what SPEC names and print it. `words`: the other options of `simulate_options`; None is not given.

    `obj.arrivals(spec, seed=…)` gives the planned requests: `frame`, `whole_block_tokens`, `notes`.
    """
    from analyzers.report.simulate_text import simulate_lines
    from analyzers.simulate import simulate
    from analyzers.simulation.setting import EFFICIENCIES, server_of

    server = server_of(words)
    planned = obj.arrivals(spec, seed=server.setting.seed)
    found = simulate(
        server, planned.frame, block_tokens=planned.whole_block_tokens, efficiencies=EFFICIENCIES, notes=planned.notes
    )
    echo_json(found.to_dict()) if as_json else echo_lines(simulate_lines(found, limit))
