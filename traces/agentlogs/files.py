"""From the paths a person names to files of logs, and from a file to JSON records with their line numbers."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traces.agentlogs.base import Head, Reading
from traces.errors import UnreadableInput

SUFFIXES = (".jsonl", ".json", ".traj", ".csv", ".ndjson")
_HEAD_BYTES = 1 << 20
_HEAD_RECORDS = 40
_LINE_BYTES = 1 << 28  # a longer line is no record
_DOCUMENT_BYTES = 1 << 28


def log_files(paths: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Files named by `paths`, and those found below directories and by patterns, each once, in a stable order.

    A file is the same file under all its names (links are followed). Raises UnreadableInput where nothing is there.
    """
    named: dict[Path, Path] = {}
    found: dict[Path, Path] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            _below(path, found)
        elif path.exists():
            named.setdefault(_real(path), path)
        else:
            matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207  patterns may be absolute
            if not matches:
                raise UnreadableInput(f"there is no file {text}", hint="give a log, a folder of logs or a pattern")
            for match in map(Path, matches):
                _below(match, found) if match.is_dir() else found.setdefault(_real(match), match)
    others = [path for real, path in found.items() if real not in named]
    if not named and not others:
        raise UnreadableInput(
            f"no log lies in {', '.join(paths)}", hint=f"files that end in {', '.join(SUFFIXES)} are looked for"
        )
    return list(named.values()), others


def _below(folder: Path, found: dict[Path, Path]) -> None:
    """Links to folders are not followed, so that none is walked in a circle."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.lower().endswith(SUFFIXES):
                path = Path(place, file)
                found.setdefault(_real(path), path)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def head_of(path: Path) -> Head:
    """What `path` is recognised by. Raises UnreadableInput where it cannot be read or holds no text at all."""
    try:
        if not path.is_file():
            raise UnreadableInput(f"{path} is not a file", hint="give a log that is a plain file")
        with path.open("rb") as log:
            start = log.read(_HEAD_BYTES)
            size = os.fstat(log.fileno()).st_size
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a log that can be read") from error
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise UnreadableInput(f"{path} is empty", hint="give a log with requests")
    lines = [line for line in text.split(b"\n")[: 2 * _HEAD_RECORDS] if line.strip()]
    if len(lines) > 1 and size > len(start):
        lines.pop()  # cut by us
    records = [value for value in map(parsed, lines) if isinstance(value, dict)][:_HEAD_RECORDS]
    if 2 * len(records) >= len(lines) and (len(lines) > 1 or size > len(start)):
        return Head(path=path, records=records)
    if text[:1] in (b"{", b"["):
        document = _document(path, size)
        items = document if isinstance(document, list) else [document]
        records = [item for item in items[:_HEAD_RECORDS] if isinstance(item, dict)]
        return Head(path=path, records=records, document=document)
    names = lines[0].decode(errors="replace").split(",")
    return Head(path=path, records=records, columns=[item.strip().strip('"').lower() for item in names])


def _document(path: Path, size: int) -> Any:
    """The one JSON value of the file, or None where it is none: then it is no format that is known."""
    if size > _DOCUMENT_BYTES:
        raise UnreadableInput(
            f"{path} is one JSON document of {size / 1e9:.1f} GB", hint="give JSON lines, one request a line"
        )
    try:
        value = parsed(path.read_bytes())
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a log that can be read") from error
    return value


def parsed(raw: bytes) -> Any:
    """A JSON value; None where it is none (JSON's null too). Bytes that are no UTF-8 become replacement characters."""
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def records_of(head: Head, reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a file of JSON lines; what is no object is noted and left out."""
    if head.document is not None:
        value = head.document
        items = value if isinstance(value, list) else [value]
        for number, item in enumerate(items, 1):
            if isinstance(item, dict):
                yield number, item
            else:
                reading.bad(head.path, number, "not a JSON object")
        return
    with head.path.open("rb") as log:
        number = 0
        while raw := log.readline(_LINE_BYTES):
            number += 1
            if len(raw) == _LINE_BYTES and not raw.endswith(b"\n"):
                while (more := log.readline(_LINE_BYTES)) and not more.endswith(b"\n"):
                    pass
                reading.bad(head.path, number, "a line of more than 256 MB")
                continue
            if not raw.strip():
                continue
            value = parsed(raw)
            if isinstance(value, dict):
                yield number, value
            else:
                reading.bad(head.path, number, "not JSON, or cut off" if value is None else "not a JSON object")
