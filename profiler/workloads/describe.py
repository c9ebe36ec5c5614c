"""What a workload is like, before anything is run: values only, see `describe_text` for the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from profiler.workloads.arrivals import Arrivals
from profiler.workloads.prefixes import PrefixReuse, prefix_reuse
from traces.clock import NS_PER_S

DESCRIPTION_VERSION = 1
_PERCENTS = (1, 10, 50, 90, 99)
_MOST_SECONDS = 50_000_000  # a longer log is not counted second by second
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values in one unit. Percentile p is the smallest value that at least p % of all do not exceed."""

    n: int
    total: int
    mean: float
    least: int
    p1: int
    p10: int
    p50: int
    p90: int
    p99: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Arrivals second by second, from the first to the last.

    `seconds` counts whole seconds from the first arrival, the one of the last included. `dispersion` is the variance of
    the counts over their mean: 1 where arrivals are independent (Poisson), above where they come in bursts.
    """

    n: int
    span_ns: int
    seconds: int
    mean_per_s: float
    peak_per_s: int
    empty_share: float  # of the seconds, without an arrival
    dispersion: float
    gaps_ns: Spread | None  # from arrival to arrival
    gap_cv: float | None  # standard deviation of the gaps over their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A workload in figures; None is unknown, and `unknown` says why."""

    version: int = DESCRIPTION_VERSION
    spec: str
    seed: int
    source: dict[str, Any]
    closed: bool  # turns wait for each other; arrivals are then those of first turns
    requests: int
    sessions: int | None
    turns: Spread | None  # per session
    rates: Rates | None
    prompt_tokens: Spread
    output_tokens: Spread
    prefix: PrefixReuse
    tool_waits_ns: Spread | None  # those above 0
    think_times_ns: Spread | None
    notes: tuple[str, ...]
    unknown: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def describe(
    arrivals: Arrivals, *, spec: str, seed: int, cache_tokens: int | None = None, cache_blocks: int | None = None
) -> Description:
    """The figures of `arrivals`. Raises UsageProblem as `prefix_reuse` does."""
    frame = arrivals.frame
    known = frame["session_id"].drop_nulls()
    rates, why = _rates(frame["arrival_ns"].drop_nulls().sort().to_numpy())
    prefix = prefix_reuse(arrivals, cache_tokens=cache_tokens, cache_blocks=cache_blocks)
    unknown = {"rates": why} if why else {}
    if prefix.by is None:
        unknown["prefix"] = "nothing says what prompts have in common"
    if known.is_empty():
        unknown["sessions"] = "there are no sessions"
    return Description(
        spec=spec, seed=seed, source=arrivals.source, closed=arrivals.closed, requests=frame.height,
        sessions=known.n_unique() if len(known) else None,
        turns=spread(known.value_counts()["count"]) if len(known) else None,
        rates=rates, prompt_tokens=_certain(frame["input_tokens"]), output_tokens=_certain(frame["output_tokens"]),
        prefix=prefix, tool_waits_ns=_waits(frame["tool_wait_ns"]), think_times_ns=_waits(frame["think_ns"]),
        notes=arrivals.notes, unknown=unknown,
    )  # fmt: skip


def spread(values: pl.Series) -> Spread | None:
    """Of whole numbers; None where there are none."""
    ordered = np.sort(values.drop_nulls().to_numpy().astype(np.int64))
    if not len(ordered):
        return None
    at = {f"p{percent}": int(ordered[max(0, -(-len(ordered) * percent // 100) - 1)]) for percent in _PERCENTS}
    return Spread(
        n=len(ordered),
        total=sum(ordered.tolist()),
        mean=float(ordered.mean()),
        least=int(ordered[0]),
        most=int(ordered[-1]),
        **at,
    )


def _certain(values: pl.Series) -> Spread:
    found = spread(values)
    assert found is not None  # arrivals are never without a request
    return found


def _waits(values: pl.Series) -> Spread | None:
    return spread(values.filter(values > 0))


def _rates(ordered: I64) -> tuple[Rates | None, str]:
    """Rates of arrivals in order of time; else why there are none."""
    if len(ordered) < 2:
        return None, "fewer than two arrivals have a time"
    span = int(ordered[-1] - ordered[0])
    if span == 0:
        return None, f"all {len(ordered):,} arrivals are at the same time"
    second = (ordered - ordered[0]) // NS_PER_S
    seconds = int(second[-1]) + 1
    if seconds > _MOST_SECONDS:
        return None, f"the arrivals are spread over {seconds:,} seconds"
    counts = np.bincount(second, minlength=seconds)
    gaps = np.diff(ordered)
    return Rates(
        n=len(ordered), span_ns=span, seconds=seconds, mean_per_s=len(ordered) / seconds, peak_per_s=int(counts.max()),
        empty_share=float((counts == 0).mean()), dispersion=float(counts.var() / counts.mean()),
        gaps_ns=spread(pl.Series(gaps)), gap_cv=float(gaps.std() / gaps.mean()),
    ), ""  # fmt: skip
