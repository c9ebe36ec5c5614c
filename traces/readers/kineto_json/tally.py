"""What became of each element of the event list; both parsers count with the same indices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Reasons why an element of the list is no row. 'metadata' and 'end' are not losses: names of processes and threads go
# to the report, and the end of a B/E pair is part of its begin's row.
METADATA, FRAME, FLOW, INSTANT, COUNTER, NO_PHASE, OTHER_PHASE, NOT_AN_EVENT, MALFORMED, TOO_LARGE = range(10)
REASONS = (
    "metadata",
    "python_frame",  # not asked for
    "flow",  # kernels carry their launch's correlation themselves
    "instant",
    "counter",
    "no_phase",
    "other_phase",
    "not_an_event",  # an element that is no object
    "malformed",  # brackets balance, the members do not parse
    "too_large",
)
N_REASONS = len(REASONS)

Counts = npt.NDArray[np.int64]


def new_counts() -> Counts:
    """Zeroed counters, one per reason."""
    return np.zeros(N_REASONS, dtype=np.int64)


def split_counts(counts: Counts) -> tuple[dict[str, int], dict[str, int]]:
    """(kept, dropped) of a report, without zeros."""
    named = {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}
    kept = {"metadata": named.pop("metadata")} if "metadata" in named else {}
    return kept, named
