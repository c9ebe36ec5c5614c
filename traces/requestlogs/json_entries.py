"""The objects of a JSON file, one after another: of JSON lines, or of one big array that need not fit into memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from traces.errors import UnreadableInput

Json: TypeAlias = Mapping[str, Any]
_HEAD_CHARACTERS = 1 << 10
_CHUNK_CHARACTERS = 1 << 22
_MOST_CHARACTERS = 1 << 27  # of one entry: what has not ended by then is not JSON
_START = re.compile(r"[\s,]*")


def json_entries(path: Path) -> Iterator[tuple[int, Json | str]]:
    """(line, object) of each object of an array or of JSON lines; (line, what is wrong) in the place of a bad one."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as log:
            start = log.read(_HEAD_CHARACTERS)
            log.seek(0)
            yield from _array(log) if start.lstrip().startswith("[") else _lines(log)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a request log") from error


def _lines(log: TextIO) -> Iterator[tuple[int, Json | str]]:
    for line, text in enumerate(log, 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            yield line, "not JSON, or cut off"
            continue
        yield line, value if isinstance(value, dict) else "not a JSON object"


def _array(log: TextIO) -> Iterator[tuple[int, Json | str]]:
    """Objects of one big array, decoded one after another. Behind an element that is no JSON nothing can be found."""
    decoder, text, line, more = json.JSONDecoder(), log.read(max(_CHUNK_CHARACTERS, _HEAD_CHARACTERS)), 1, True
    at = text.index("[") + 1
    line += text.count("\n", 0, at)
    while True:
        begin = _START.match(text, at)
        assert begin is not None  # it matches nothing, too
        line += text.count("\n", at, begin.end())
        at = begin.end()
        if text.startswith("]", at):
            return
        value, end = _decoded(decoder, text, at)
        if end is not None and (end < len(text) or not more):  # a number at the end of the text may go on behind it
            yield line, value if isinstance(value, dict) else "not a JSON object"
            line += text.count("\n", at, end)
            at = end
            continue
        read = log.read(max(_CHUNK_CHARACTERS, len(text) - at)) if len(text) - at < _MOST_CHARACTERS else ""
        more = bool(read)
        if not more and end is None:
            yield line, "not JSON, or cut off; nothing behind it can be read"
            return
        text, at = text[at:] + read, 0


def _decoded(decoder: json.JSONDecoder, text: str, at: int) -> tuple[object, int | None]:
    """The value that begins at `at`, and where it ends; None where none ends there."""
    try:
        return decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, None
