"""Compiled twin of `decimals`: numbers from their decimal text to int64, without floats."""

# ruff: noqa: PLR0912, PLR1714
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.machine import compiled, inlined, load_byte
from traces.readers.kineto_json.rows import NULL

_MAX = 2**63 - 1
_MAX_TENTH = _MAX // 10
_MAX_DIGITS = 40  # before the point, as in traces.clock


@inlined
def _is_space(byte: int) -> bool:
    return byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09


@compiled
def parse_time(p: int, stop: int) -> int:
    """Nanoseconds of the µs between two addresses; see `decimals.time_ns`."""
    whole, fraction, places = 0, 0, 0
    at = p
    while at < stop and 0x30 <= load_byte(at) <= 0x39:
        whole = whole * 10 + load_byte(at) - 0x30
        at += 1
    if at == p or at - p > 15:
        return _parse_scaled(p, stop, 3, True)
    if at < stop and load_byte(at) == 0x2E:
        at += 1
        while at < stop and places < 3 and 0x30 <= load_byte(at) <= 0x39:
            fraction = fraction * 10 + load_byte(at) - 0x30
            at += 1
            places += 1
    if at != stop:
        return _parse_scaled(p, stop, 3, True)
    while places < 3:
        fraction *= 10
        places += 1
    return whole * 1000 + fraction


@compiled
def parse_whole(p: int, stop: int) -> int:
    """The id between two addresses; see `decimals.whole_number`."""
    at, value = p, 0
    if stop - p <= 18:
        while at < stop and 0x30 <= load_byte(at) <= 0x39:
            value = value * 10 + load_byte(at) - 0x30
            at += 1
        if at == stop and at > p:
            return value
    return _parse_scaled(p, stop, 0, False)


@compiled
def _parse_scaled(p: int, stop: int, shift: int, is_time: bool) -> int:
    """The general case: signs, white space around, exponents, any number of digits."""
    while p < stop and _is_space(load_byte(p)):
        p += 1
    while p < stop and _is_space(load_byte(stop - 1)):
        stop -= 1
    negative = p < stop and load_byte(p) == 0x2D
    if p < stop and (negative or load_byte(p) == 0x2B):
        p += 1
    first = p
    while p < stop and 0x30 <= load_byte(p) <= 0x39:
        p += 1
    n_whole = p - first
    n_digits = n_whole
    if p < stop and load_byte(p) == 0x2E:
        p += 1
        mark = p
        while p < stop and 0x30 <= load_byte(p) <= 0x39:
            p += 1
        n_digits += p - mark
    if n_digits == 0:
        return NULL
    exponent = 0
    if p < stop:
        valid, exponent = _exponent(p, stop)
        if not valid:
            return NULL
    point = n_whole + shift + exponent
    if point > _MAX_DIGITS:
        return NULL
    value = _take_digits(first, n_whole, n_digits, point, is_time)
    if value == NULL:
        return NULL
    if is_time or not negative:
        if is_time and value < 0:
            return NULL
        return -value if negative else value
    return NULL if value < 0 else -value


@compiled
def _exponent(p: int, stop: int) -> tuple[bool, int]:
    if (load_byte(p) | 0x20) != 0x65 or stop - p - 1 >= 6:
        return False, 0
    p += 1
    negative = p < stop and load_byte(p) == 0x2D
    if p < stop and (negative or load_byte(p) == 0x2B):
        p += 1
    if p == stop:
        return False, 0
    value = 0
    while p < stop:
        digit = load_byte(p) - 0x30
        if digit < 0 or digit > 9:
            return False, 0
        value = value * 10 + digit
        p += 1
    return True, -value if negative else value


@compiled
def _take_digits(first: int, n_whole: int, n_digits: int, point: int, is_time: bool) -> int:
    """Digits before `point`, as uint64 in an int64; NULL where they do not fit.

    For times the next digit rounds, for ids every digit behind the point must be zero.
    """
    value = 0
    for i in range(point):
        digit = _digit(first, n_whole, i) if i < n_digits else 0
        # unsigned compare with 2**64 // 10, in signed terms: once the top bit is set no further digit fits
        if value < 0 or value > 1844674407370955161 or (value == 1844674407370955161 and digit > 5):
            return NULL
        value = value * 10 + digit
    if is_time:
        if value < 0:
            return NULL
        if 0 <= point < n_digits and _digit(first, n_whole, point) >= 5:
            if value == _MAX:
                return NULL
            value += 1
        return value
    for i in range(max(point, 0), n_digits):
        if _digit(first, n_whole, i) != 0:
            return NULL
    return value


@inlined
def _digit(first: int, n_whole: int, index: int) -> int:
    return load_byte(first + index + (1 if index >= n_whole else 0)) - 0x30
