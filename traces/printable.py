"""Text that came from a file, made safe for a terminal."""

from __future__ import annotations

from typing import TextIO


def printable(text: str, *, keep: str = "") -> str:
    """`text` with control characters spelled out, but for those in `keep`: a name must not steer the terminal."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def for_stream(text: str, stream: TextIO) -> str:
    """CSV as it is for a file or a pipe; on a terminal, with control characters spelled out."""
    return printable(text, keep="\n\t") if stream.isatty() else text


def utf8(text: str) -> str:
    """A name from the file system or the command line, which may hold bytes that are no UTF-8, as text a database takes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
