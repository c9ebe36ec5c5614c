"""Sessions of traffic that names none: a request continues the one whose whole prompt it begins with (method §9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PREFIX = "prefix-"  # how such sessions are called


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unnamed:
    """A request without a session. `keys`: of its prompt up to every token or block, as in table `prompts`."""

    request_id: str
    keys: NDArray[np.uint64]


def by_prefix(requests: Sequence[Unnamed]) -> dict[str, tuple[str, int]]:
    """(session, turn) per request id; `requests` in order of time. Those with nothing to compare are left out.

    A later request belongs to the session whose latest whole prompt is its longest beginning; one that only shares a
    system prompt begins a session of its own. The same prompt again is a new session: nothing was added.
    """
    ends: dict[int, tuple[str, int]] = {}  # key of a prompt's end → its session and turn
    told: dict[str, tuple[str, int]] = {}
    for request in requests:
        if not len(request.keys):
            continue
        keys = request.keys.tolist()
        last = next((ends[key] for key in reversed(keys[:-1]) if key in ends), None)
        own = (f"{PREFIX}{len(told)}", 0) if last is None else (last[0], last[1] + 1)
        ends[keys[-1]] = told[request.request_id] = own
    return told
