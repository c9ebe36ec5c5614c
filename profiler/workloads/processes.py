"""`poisson`, `gamma` and `burst`: arrivals without a log, each request a session of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import polars as pl

from profiler.workloads.arrivals import MAX_REQUESTS, Arrivals, as_planned, bounded
from profiler.workloads.lengths import normal, parse_lengths
from profiler.workloads.options import option
from profiler.workloads.text import stream
from profiler.workloads.transforms import TransformOptions, transformed
from traces.errors import UsageProblem

_NS_PER_S = 1_000_000_000
_DEFAULT_REQUESTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessOptions(TransformOptions):
    """What the three have in common; see lengths.py for how a length is written."""

    n_requests: int = option("n", "count", 0, maximum=MAX_REQUESTS)  # 0: as many as `duration` holds, else 100
    duration_ns: int = option("duration", "seconds", 0.0, maximum=10_000_000)  # arrivals before that time
    prompt: str = option("prompt", "text", "256", check=parse_lengths)
    output: str = option("output", "text", "32", check=parse_lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonOptions(_ProcessOptions):
    """Options of `poisson`."""

    rate_per_s: float = option("rate", "number", 1.0, minimum=1e-6, maximum=1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaOptions(PoissonOptions):
    """Options of `gamma`: above 1 a cv bunches arrivals, below 1 it evens them out, and 1 is Poisson."""

    cv: float = option("cv", "number", 2.0, minimum=0.01, maximum=100)  # standard deviation of the gaps over their mean
    burstiness: float = option("burstiness", "number", 0.0, maximum=10_000)  # as vLLM has it: 1 / cv²; 0: by cv


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstOptions(_ProcessOptions):
    """Options of `burst`: `size` requests `gap` apart, and the next burst `every` after the start of the one before."""

    size: int = option("size", "count", 16, minimum=1, maximum=MAX_REQUESTS)
    every_ns: int = option("every", "seconds", 10.0, minimum=0.001, maximum=86_400)
    gap_ns: int = option("gap", "seconds", 0.0, maximum=86_400)


class PoissonWorkload:
    """Independent arrivals at a rate."""

    name: ClassVar[str] = "poisson"
    options_type: ClassVar[type[PoissonOptions]] = PoissonOptions

    def arrivals(self, options: PoissonOptions, seed: int) -> Arrivals:
        """Raises UsageProblem as `transformed` does."""
        gaps = gamma_gaps(stream(seed, self.name, "arrivals"), options.rate_per_s, 1.0)
        return _drawn(self.name, _summed(gaps), options, seed)


class GammaWorkload:
    """Arrivals whose gaps are gamma-distributed."""

    name: ClassVar[str] = "gamma"
    options_type: ClassVar[type[GammaOptions]] = GammaOptions

    def arrivals(self, options: GammaOptions, seed: int) -> Arrivals:
        """Raises UsageProblem as `transformed` does."""
        cv = options.burstiness**-0.5 if options.burstiness else options.cv
        return _drawn(
            self.name, _summed(gamma_gaps(stream(seed, self.name, "arrivals"), options.rate_per_s, cv)), options, seed
        )


class BurstWorkload:
    """Arrivals in bursts with silence between them."""

    name: ClassVar[str] = "burst"
    options_type: ClassVar[type[BurstOptions]] = BurstOptions

    def arrivals(self, options: BurstOptions, seed: int) -> Arrivals:
        """Raises UsageProblem where a burst is longer than the time to the next, and as `transformed` does."""
        if (options.size - 1) * options.gap_ns > options.every_ns:
            raise UsageProblem(
                "a burst is longer than the time to the next one", hint="make size or gap smaller, or every larger"
            )
        times = (
            burst * options.every_ns + place * options.gap_ns
            for burst in itertools.count()
            for place in range(options.size)
        )
        return _drawn(self.name, times, options, seed)


def gamma_gaps(random: Random, rate_per_s: float, cv: float) -> Iterator[int]:
    """Gaps in ns, without end: gamma with mean 1 / rate_per_s and coefficient of variation `cv`; 0 is a steady beat."""
    mean_ns = _NS_PER_S / rate_per_s
    if cv == 0.0:
        yield from itertools.repeat(round(mean_ns))
    if cv == 1.0:
        while True:
            yield int(-math.log(1.0 - random.random()) * mean_ns)
    shape = 1.0 / (cv * cv)
    while True:
        yield int(_gamma(random, shape) / shape * mean_ns)


def _gamma(random: Random, shape: float) -> float:
    """A gamma variate of scale 1: Marsaglia and Tsang, ACM Transactions on Mathematical Software 26 (2000) 363."""
    if shape < 1.0:
        return float(_gamma(random, shape + 1.0) * (1.0 - random.random()) ** (1.0 / shape))
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(random)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - random.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v


def _summed(gaps: Iterator[int]) -> Iterator[int]:
    """Arrival times in ns from 0."""
    now = 0
    for gap in gaps:
        yield now
        now += gap


def _drawn(name: str, times: Iterator[int], options: _ProcessOptions, seed: int) -> Arrivals:
    n_requests = options.n_requests or (MAX_REQUESTS + 1 if options.duration_ns else _DEFAULT_REQUESTS)
    kept: Iterator[int] = itertools.islice(times, n_requests)
    if options.duration_ns:
        kept = itertools.takewhile(lambda time_ns: time_ns < options.duration_ns, kept)
    arrival_ns = list(kept)
    bounded(name, len(arrival_ns))
    prompt, output = parse_lengths(options.prompt), parse_lengths(options.output)
    prompts, outputs = stream(seed, name, "prompts"), stream(seed, name, "outputs")
    frame = pl.DataFrame(
        {
            "arrival_ns": arrival_ns,
            "input_tokens": [prompt.draw(prompts) for _ in arrival_ns],
            "output_tokens": [output.draw(outputs) for _ in arrival_ns],
        },
        schema=dict.fromkeys(("arrival_ns", "input_tokens", "output_tokens"), pl.Int64()),
    )
    return transformed(Arrivals(frame=as_planned(frame)), options)
