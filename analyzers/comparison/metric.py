"""One number of a comparison, before anything is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.comparison.effect import DIFFERENCE, LOG, Scale
from analyzers.comparison.sample import Sample

# What people decide by, and what explains it: each group of numbers keeps its own share of the false verdicts.
HEADLINE = ("latency", "throughput", "steps", "phases")
DETAIL = ("categories", "kernels", "idle", "reuse")
GROUPS = (*HEADLINE, *DETAIL)
LOWER, HIGHER, NEITHER = "lower", "higher", None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number of both sides: a sample per pass (or recorded run), or `withheld`: why there is none.

    `metric_id` is stable. `unit`: 'ns', 'tokens/s', 'tokens', 'requests', 'share'. `better`: which direction is, or None.
    `timed`: a clock has a part in it, so that a drift of the machine is in it too. `shortest_ns`: the shortest pass or window
    of either side. `common`: see effect.Noise. `note`: what it is of, or what to mind.
    """

    metric_id: str
    group: str
    title: str
    unit: str
    better: str | None = LOWER
    base: Sequence[Sample] = ()
    cand: Sequence[Sample] = ()
    starts: tuple[tuple[int | None, ...], tuple[int | None, ...]] = ((), ())
    timed: bool = True
    shortest_ns: int | None = None
    common: float = 0.0
    units: str = ""  # what is drawn again: 'sessions', 'requests', 'blocks of steps', …
    note: str = ""
    withheld: str | None = None

    @property
    def scale(self) -> Scale:
        """Shares are compared by difference: they may be 0."""
        return DIFFERENCE if self.unit == "share" else LOG
