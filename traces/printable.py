"""Text that came from a file, made safe for a terminal."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """`text` with control characters spelled out, but for those in `keep`: a name must not steer the terminal."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)
