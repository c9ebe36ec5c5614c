"""The time of a logged chat request, in the spellings that are met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from traces.clock import MOST_NS, NS_PER_MS, NS_PER_S

_KEYS = ("timestamp", "created", "created_at")
_MOST_S = 100_000_000_000  # a number from here on is milliseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ns(entry: Mapping[str, Any]) -> int | None:
    """ns since the epoch of the first of the keys that holds a time; without an offset it is UTC."""
    found = (_ns(entry.get(key)) for key in _KEYS)
    return next((ns for ns in found if ns is not None), None)


def _ns(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _iso_ns(value)
    if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
        ns = round(value * (NS_PER_S if value < _MOST_S else NS_PER_MS))
        return ns if ns < MOST_NS else None
    return None


def _iso_ns(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    ns = (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1000
    return ns if abs(ns) < MOST_NS else None
