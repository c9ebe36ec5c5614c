"""Compiled twin of `text`: strings unescaped, invalid UTF-8 replaced, white space outside of strings left out.

Every function writes to `out` and returns the address behind what it wrote.
"""

# ruff: noqa: PLR1714, SIM108
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.machine import (
    compiled,
    equal_mask,
    high_mask,
    inlined,
    load_byte,
    lowest_bit,
    store_byte,
)


@compiled
def is_ascii(p: int, stop: int) -> bool:
    """Whether all bytes between two addresses are below 0x80."""
    while p < stop:
        found = high_mask(p)
        if found != 0:
            return p + lowest_bit(found) >= stop
        p += 64
    return True


@compiled
def has_escape(p: int, stop: int) -> bool:
    """Whether a backslash is among the bytes between two addresses."""
    while p < stop:
        found = equal_mask(p, 0x5C)
        if found != 0:
            return p + lowest_bit(found) < stop
        p += 64
    return False


@inlined
def _put(out: int, byte: int) -> int:
    store_byte(out, byte)
    return out + 1


@compiled
def _put_code(out: int, code: int) -> int:
    """UTF-8 of a code point; U+FFFD for a lone surrogate."""
    if 0xD800 <= code < 0xE000:
        code = 0xFFFD
    if code < 0x80:
        return _put(out, code)
    if code < 0x800:
        return _put(_put(out, 0xC0 | code >> 6), 0x80 | code & 0x3F)
    if code < 0x10000:
        out = _put(out, 0xE0 | code >> 12)
    else:
        out = _put(_put(out, 0xF0 | code >> 18), 0x80 | code >> 12 & 0x3F)
    return _put(_put(out, 0x80 | code >> 6 & 0x3F), 0x80 | code & 0x3F)


@compiled
def _hex4(p: int, stop: int) -> int:
    """Value of four hexadecimal digits; -1 where they are not."""
    if p + 4 > stop:
        return -1
    value = 0
    for i in range(4):
        byte = load_byte(p + i)
        if 0x30 <= byte <= 0x39:
            digit = byte - 0x30
        elif 0x61 <= (byte | 0x20) <= 0x66:
            digit = (byte | 0x20) - 0x61 + 10
        else:
            return -1
        value = value << 4 | digit
    return value


@inlined
def _plain_escape(byte: int) -> int:
    if byte == 0x22 or byte == 0x5C or byte == 0x2F:
        return byte
    if byte == 0x62:
        return 8
    if byte == 0x66:
        return 12
    if byte == 0x6E:
        return 10
    if byte == 0x72:
        return 13
    if byte == 0x74:
        return 9
    return -1


@compiled
def unescape(p: int, stop: int, out: int) -> int:
    """Undo the escapes of a string; unknown ones stay as written. Writes at most `stop - p` bytes."""
    while p < stop:
        byte = load_byte(p)
        if byte != 0x5C or p + 1 >= stop:
            out = _put(out, byte)
            p += 1
            continue
        kind = load_byte(p + 1)
        plain = _plain_escape(kind)
        code = _hex4(p + 2, stop) if kind == 0x75 else -1
        if plain >= 0:
            out = _put(out, plain)
        elif code < 0:
            out = _put(_put(out, byte), kind)
        else:
            if 0xD800 <= code < 0xDC00 and p + 8 <= stop and load_byte(p + 6) == 0x5C and load_byte(p + 7) == 0x75:
                low = _hex4(p + 8, stop)
                if 0xDC00 <= low < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                    p += 6
            out = _put_code(out, code)
            p += 4
        p += 2
    return out


@compiled
def _sequence(p: int, stop: int) -> tuple[int, bool]:
    """(length, whether valid) of the UTF-8 sequence at `p`; of an invalid one, the part to be replaced together."""
    byte = load_byte(p)
    low, high, length = 0x80, 0xBF, 2
    if byte < 0xC2 or byte > 0xF4:
        return 1, False
    if byte >= 0xF0:
        length = 4
        if byte == 0xF0:
            low = 0x90
        elif byte == 0xF4:
            high = 0x8F
    elif byte >= 0xE0:
        length = 3
        if byte == 0xE0:
            low = 0xA0
        elif byte == 0xED:
            high = 0x9F
    for i in range(1, length):
        if p + i >= stop or not low <= load_byte(p + i) <= high:
            return i, False
        low, high = 0x80, 0xBF
    return length, True


@compiled
def repair(p: int, stop: int, out: int) -> int:
    """Copy with invalid UTF-8 replaced by U+FFFD, as Python's decoder does. Writes at most 3 * (stop - p) bytes."""
    while p < stop:
        byte = load_byte(p)
        if byte < 0x80:
            out = _put(out, byte)
            p += 1
            continue
        length, valid = _sequence(p, stop)
        if valid:
            for i in range(length):
                out = _put(out, load_byte(p + i))
        else:
            out = _put_code(out, 0xFFFD)
        p += length
    return out


@compiled
def compact(p: int, stop: int, out: int) -> int:
    """Copy raw JSON without the white space outside of its strings."""
    inside, escaped = False, False
    while p < stop:
        byte = load_byte(p)
        p += 1
        if not inside and byte <= 0x20:
            continue
        out = _put(out, byte)
        if escaped:
            escaped = False
        elif inside and byte == 0x5C:
            escaped = True
        elif byte == 0x22:
            inside = not inside
    return out
