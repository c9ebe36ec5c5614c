"""The text of a JSON string, leniently: what a strict parser refuses is kept as it stands."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?)')
_SIMPLE = {34: b'"', 92: b"\\", 47: b"/", 98: b"\b", 102: b"\f", 110: b"\n", 114: b"\r", 116: b"\t"}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def decode_string(raw: bytes) -> bytes:
    """Valid UTF-8 from the bytes between two quotes.

    Unknown escapes (an unescaped backslash of a path) stay as written; lone surrogates and invalid UTF-8 become U+FFFD.
    """
    if b"\\" in raw:
        raw = _unescape(raw)
    if raw.isascii():
        return raw
    return raw.decode("utf-8", "replace").encode()


def _unescape(raw: bytes) -> bytes:
    parts = []
    position = 0
    while (at := raw.find(b"\\", position)) >= 0:
        parts.append(raw[position:at])
        match = _ESCAPE.match(raw, at)
        if match is None:  # kept, with the character behind it, which therefore starts no escape of its own
            parts.append(raw[at : at + 2])
            position = at + 2
            continue
        position = match.end()
        if match.group(1):
            parts.append(_SIMPLE[match.group(1)[0]])
            continue
        code = int(match.group(2), 16)
        if 0xD800 <= code < 0xDC00 and match.group(3):
            code = 0x10000 + ((code - 0xD800) << 10) + (int(match.group(3), 16) - 0xDC00)
        elif match.group(3):  # the second escape stands for itself
            position = at + 6
        parts.append(_REPLACEMENT if 0xD800 <= code < 0xE000 else chr(code).encode())
    parts.append(raw[position:])
    return b"".join(parts)


_OUTSIDE_SPACE = re.compile(rb'("(?:[^"\\]++|\\.)*+")|[\x00-\x20]++', re.DOTALL)


def compact_json(raw: bytes) -> bytes:
    """Raw JSON without the white space outside its strings, as valid UTF-8: one spelling for pretty and one-line."""
    squeezed = _OUTSIDE_SPACE.sub(lambda match: match.group(1) or b"", raw)
    return squeezed if squeezed.isascii() else squeezed.decode("utf-8", "replace").encode()


_REPAIR = re.compile(
    rb'("(?:[^"\\]++|\\.)*+")|(-?(?:inf(?:inity)?|nan)\b)|,(?=[\x00-\x20]*+[}\]])', re.DOTALL | re.IGNORECASE
)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)


def decode_value(raw: bytes) -> Any:
    """A JSON value, leniently: control characters, stray backslashes, `inf`, trailing commas; NaN and inf are None.

    Raises ValueError where it is no JSON even so, or is nested too deeply.
    """
    try:
        return _strict(raw)
    except ValueError:
        return _strict(_REPAIR.sub(_repair, raw))


def _strict(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8", "replace")
        return json.loads(text, strict=False, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _repair(match: re.Match[bytes]) -> bytes:
    if match.group(1):
        return _BAD_ESCAPE.sub(
            lambda escape: escape.group(0) if escape.group(1) else b"\\" + escape.group(0), match.group(1)
        )
    return b"null" if match.group(2) else b""
