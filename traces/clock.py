"""Integer nanoseconds: decimal text to ns without floats, and clocks of hosts, devices and ranks."""

from __future__ import annotations

import re

from traces.errors import UsageProblem

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
INT64_MAX = 2**63 - 1
MOST_NS = 2**62 - 1  # the year 2116: what lies beyond is no time, and between two times there are less than 2^63 ns

_OFFSET = re.compile(r"([+-]?)(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")


def decimal_us_to_ns(text: str) -> int | None:
    """Nanoseconds of a decimal number of microseconds, exactly; None where `text` is no finite number.

    Digits beyond the nanosecond are rounded half up (away from zero). A float64 of epoch microseconds would
    lose up to 0.25 µs, so no float is involved.
    """
    match = _DECIMAL.fullmatch(text.strip())
    if match is None:
        return None
    sign, whole, fraction, exponent = match.group(1), match.group(2), match.group(3) or "", match.group(4)
    if not whole and not fraction:
        return None
    shift = 3 + (int(exponent) if exponent and len(exponent) < 6 else 0)
    if exponent and len(exponent) >= 6:
        return None
    digits = whole + fraction
    point = len(whole) + shift
    if point > 40:
        return None
    if point < 0:
        value = 0
    elif point >= len(digits):
        value = int(digits.ljust(point, "0"))
    else:
        value = int(digits[:point] or "0") + (1 if digits[point] >= "5" else 0)
    if value > INT64_MAX:
        return None
    return -value if sign == "-" else value


def utc_offset_ns(text: str) -> int:
    """By how much a local time is ahead of UTC: `+02:00`, `-7`, `0530`. Raises UsageProblem."""
    match = _OFFSET.fullmatch(text.strip().removeprefix("UTC"))
    if match is None or int(match.group(2)) > 14:
        raise UsageProblem(f"cannot read the offset {text[:40]!r}", hint="--utc-offset takes +HH:MM, such as +02:00")
    minutes = int(match.group(2)) * 60 + int(match.group(3) or 0)
    return (-minutes if match.group(1) == "-" else minutes) * 60 * NS_PER_S
