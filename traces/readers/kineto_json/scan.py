"""Compiled scanners over raw addresses: ends of strings, of bare words and of bracketed values."""

# ruff: noqa: PLR1714
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.machine import (
    blank_mask,
    bracket_mask,
    compiled,
    count_bits,
    equal_mask,
    inlined,
    load_byte,
    load_word,
    lowest_bit,
)

MORE = -1  # the value goes on beyond the end of the buffer


@inlined
def after_blank(p: int, end: int) -> int:
    """First byte that is neither white space nor a comma; at least `end` where there is none."""
    byte = load_byte(p)
    if byte > 0x20 and byte != 0x2C:
        return p
    while p < end:
        other = ~(blank_mask(p) | equal_mask(p, 0x2C))
        if other != 0:
            return p + lowest_bit(other)
        p += 64
    return p


@inlined
def after_space(p: int, end: int) -> int:
    """First byte that is no white space; at least `end` where there is none."""
    while p < end and load_byte(p) <= 0x20:
        p += 1
    return p


@inlined
def closing_quote(p: int, end: int) -> tuple[int, int]:
    """(address of the quote that ends the string whose first byte is at `p`, or MORE; whether it holds escapes)."""
    escaped = 0
    while p < end:
        found = equal_mask(p, 0x22) | equal_mask(p, 0x5C)
        if found == 0:
            p += 64
            continue
        p += lowest_bit(found)
        if p >= end:
            return MORE, escaped
        if load_byte(p) == 0x22:
            return p, escaped
        escaped = 1
        p += 2
    return MORE, escaped


@inlined
def after_bare(p: int, end: int) -> int:
    """First byte behind a bare word (number, literal, anything without delimiters), or MORE."""
    while p < end:
        byte = load_byte(p)
        if byte <= 0x22 and (byte <= 0x20 or byte == 0x22):
            return p
        if byte == 0x2C or byte == 0x3A or (byte | 0x20) == 0x7B or (byte | 0x20) == 0x7D:
            return p
        p += 1
    return MORE


@compiled
def after_close(p: int, end: int, depth: int) -> int:
    """First byte behind the bracket that brings `depth` to zero, starting outside of strings; or MORE."""
    inside = 0  # -1 within a string
    while p < end:
        if equal_mask(p, 0x5C) != 0:
            p, depth, inside = _close_bytewise(p, end, depth, inside)
            if depth <= 0:
                return p if p <= end else MORE
            continue
        quotes = equal_mask(p, 0x22)
        quotes ^= quotes << 1
        quotes ^= quotes << 2
        quotes ^= quotes << 4
        quotes ^= quotes << 8
        quotes ^= quotes << 16
        quotes ^= quotes << 32
        text = quotes ^ inside
        opening = bracket_mask(p, 0x7B) & ~text
        closing = bracket_mask(p, 0x7D) & ~text
        if closing == 0:
            depth += count_bits(opening)
        else:
            both = opening | closing
            while both != 0:
                depth += 1 if (both & -both & closing) == 0 else -1
                if depth <= 0:
                    p += lowest_bit(both) + 1
                    return p if p <= end else MORE
                both &= both - 1
        inside = text >> 63
        p += 64
    return MORE


@compiled
def _close_bytewise(p: int, end: int, depth: int, inside: int) -> tuple[int, int, int]:
    """At least 64 bytes one by one, where a backslash is among them: (next byte, depth, inside)."""
    stop = min(p + 64, end)
    while p < stop:
        byte = load_byte(p)
        p += 1
        if inside != 0:
            if byte == 0x5C:
                p += 1
            elif byte == 0x22:
                inside = 0
        elif byte == 0x22:
            inside = -1
        elif (byte | 0x20) == 0x7B:
            depth += 1
        elif (byte | 0x20) == 0x7D:
            depth -= 1
            if depth <= 0:
                break
    return p, depth, inside


@compiled
def after_element(p: int, end: int) -> int:
    """First byte behind the list element at `p`, whatever it is; or MORE."""
    byte = load_byte(p)
    if byte == 0x22:
        quote, _ = closing_quote(p + 1, end)
        return MORE if quote < 0 else quote + 1
    if (byte | 0x20) == 0x7B:
        return after_close(p + 1, end, 1)
    stop = after_bare(p, end)
    return p + 1 if stop == p else stop


@inlined
def same_bytes(left: int, right: int, count: int) -> bool:
    """Whether `count` bytes at both addresses are equal."""
    while count >= 8:
        if load_word(left) != load_word(right):
            return False
        left += 8
        right += 8
        count -= 8
    if count == 0:
        return True
    return ((load_word(left) ^ load_word(right)) << (64 - 8 * count)) == 0


@compiled
def contains(start: int, stop: int, pattern: int, count: int) -> bool:
    """Whether the `count` (two or more) bytes at `pattern` occur between `start` and `stop`."""
    last = stop - count
    p = start
    while p <= last:
        found = equal_mask(p, load_byte(pattern)) & equal_mask(p + 1, load_byte(pattern + 1))
        while found != 0:
            at = p + lowest_bit(found)
            if at > last:
                return False
            if same_bytes(at, pattern, count):
                return True
            found &= found - 1
        p += 64
    return False
