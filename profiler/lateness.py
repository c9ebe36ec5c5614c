"""How well a load generator kept to its plan: the time from when a request was due to when it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Below these nobody sees it, whatever the gaps.
LEAST_MEDIAN_NS = 5_000_000
LEAST_P99_NS = 100_000_000
# Of the mean time between two requests: a median above the first share means that it is always behind.
MEDIAN_SHARE, P99_SHARE = 0.1, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Percentile p is the smallest value that at least p % do not exceed; None of nothing sent."""

    n: int
    p50_ns: int | None
    p99_ns: int | None
    max_ns: int | None

    @classmethod
    def of(cls, late_ns: Sequence[int]) -> Lateness:
        """Of the requests of a pass."""
        ordered = sorted(late_ns)
        p50, p99 = (ordered[max(0, -(-len(ordered) * p // 100) - 1)] if ordered else None for p in (50, 99))
        return cls(n=len(ordered), p50_ns=p50, p99_ns=p99, max_ns=ordered[-1] if ordered else None)

    def problem(self, span_ns: int) -> str | None:
        """What to say where requests sent over `span_ns` were late by what matters next to the gaps between them."""
        if self.p50_ns is None or self.p99_ns is None:
            return None
        gap_ns = span_ns / self.n
        if not (
            self.p50_ns > max(LEAST_MEDIAN_NS, MEDIAN_SHARE * gap_ns)
            or self.p99_ns > max(LEAST_P99_NS, P99_SHARE * gap_ns)
        ):
            return None
        return (
            f"the load generator could not keep up: half of its {self.n:,} requests were sent {_ms(self.p50_ns)} or more "
            f"after they were due, 1 % {_ms(self.p99_ns)} or more (mean time between requests {_ms(gap_ns)}); bursts "
            "reached the engine flatter than planned: lower the rate, or give the client a processor of its own"
        )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.1f} ms"
