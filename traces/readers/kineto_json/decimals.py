"""Numbers of a trace from their text, exactly: times in µs to integer ns, and ids."""

from __future__ import annotations

import re

from traces.clock import decimal_us_to_ns
from traces.readers.kineto_json.rows import NULL

SPACE = b" \t\r\n"
_NUMBER = re.compile(rb"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")


def time_ns(token: bytes) -> int:
    """Nanoseconds of a decimal number of µs; NULL where it is no finite number or beyond int64."""
    token = token.strip(SPACE)
    if _NUMBER.fullmatch(token) is None:
        return NULL
    value = decimal_us_to_ns(token.decode("ascii"))
    return NULL if value is None else value


def whole_number(token: bytes) -> int:
    """An id: an integer, also written as `7.0` or `7e0`; NULL where it is none or does not fit 64 bits.

    Values from 2^63 on (unsigned ids) wrap to negative ones, so that distinct ids stay distinct; 2^63 itself is NULL.
    """
    match = _NUMBER.fullmatch(token.strip(SPACE))
    if match is None:
        return NULL
    sign, whole, fraction, exponent = match.group(1), match.group(2), match.group(3) or b"", match.group(4)
    digits = whole + fraction
    if not digits or (exponent and len(exponent) >= 6):
        return NULL
    point = len(whole) + int(exponent or 0)
    if point > 40 or digits[max(point, 0) :].strip(b"0"):
        return NULL
    value = int(digits[:point].ljust(point, b"0")) if point > 0 else 0
    if value >= 2**64 or (sign == b"-" and value >= 2**63):
        return NULL
    if sign == b"-":
        return -value
    return value if value < 2**63 else value - 2**64
