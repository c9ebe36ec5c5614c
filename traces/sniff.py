"""Which files an ingest reads, what each is for, and which reader takes it.

Only the first `HEAD_BYTES` decompressed bytes of a file are looked at, and a file is never opened before it is known
to be a regular one: opening a pipe would wait for its writer.
"""

from __future__ import annotations

import importlib
import re
import stat
import zlib
from pathlib import Path
from typing import cast

import zstandard

from traces.errors import UnreadableInput, UsageProblem
from traces.readers.base import Reader

HEAD_BYTES = 64 * 1024

# name, module, class. Formats with a signature come first; the most forgiving one, JSON with trace events, is last.
READERS: tuple[tuple[str, str, str], ...] = (
    ("nsys", "traces.readers.nsys", "NsysReader"),
    ("schedule", "traces.readers.schedule", "ScheduleReader"),
    ("requests", "traces.readers.requests", "RequestsReader"),
    ("prompts", "traces.readers.prompts", "PromptsReader"),
    ("telemetry", "traces.readers.telemetry", "TelemetryReader"),
    ("nvidia-smi", "traces.readers.telemetry_smi", "SmiReader"),
    ("dcgm", "traces.readers.telemetry_dcgm", "DcgmReader"),
    ("prometheus", "traces.readers.telemetry_prometheus", "PrometheusReader"),
    ("metrics", "traces.readers.metrics", "MetricsReader"),
    ("kineto", "traces.readers.kineto", "KinetoReader"),
)

_EVENT_LIST = re.compile(rb'"traceEvents"\s*+:\s*+\[')
PIPE = "is a pipe"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# vLLM and SGLang annotate each captured graph: capture_<batch size>_<mode>
_CAPTURE_ANNOTATION = re.compile(rb'"name"\s*:\s*"capture_\d+_[A-Z]+"')


def open_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` decompressed bytes of a regular file (gzip, zstd or plain, by its first bytes).

    A file cut off or damaged within them gives what could be decompressed, perhaps nothing. Raises UnreadableInput
    where the file cannot be opened or is no regular file.
    """
    problem = file_problem(path)
    if problem is not None:
        raise UnreadableInput(f"{path} {problem}", hint=hint_of(problem))
    with path.open("rb") as source:
        raw = source.read(HEAD_BYTES)
    if raw.startswith(_GZIP_MAGIC):
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, HEAD_BYTES)
        except zlib.error:
            return b""
    if raw.startswith(_ZSTD_MAGIC):
        try:
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
                return stream.read(HEAD_BYTES)
        except zstandard.ZstdError:
            return b""
    return raw


def file_problem(path: Path) -> str | None:
    """Why `path` cannot be read as a file, as the predicate of a sentence; None where it can."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return "is a link to nothing" if path.is_symlink() else "does not exist"
    except PermissionError:
        return "may not be read"
    except OSError as error:  # a loop of links, a name that is too long, a broken mount
        return f"cannot be reached: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return "is a directory"
    if stat.S_ISFIFO(status.st_mode):
        return PIPE
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_size == 0:
        return "is empty: the profiler wrote nothing"
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return f"may not be read: {error.strerror}"


def hint_of(problem: str) -> str:
    """What to do about a problem that `file_problem` names."""
    if problem == PIPE:
        return "name the pipe itself: in a directory it is not waited for"
    if problem.startswith("is empty"):
        return "profile again, and let the engine finish writing before it is stopped"
    if problem.startswith("may not be read"):
        return "check the permissions of the file"
    return "check the path"


def reader_named(name: str) -> Reader:
    """The reader called `name`. Raises UsageProblem naming the known ones."""
    for known, module, attribute in READERS:
        if known == name:
            return cast("Reader", getattr(importlib.import_module(module), attribute)())
    raise UsageProblem(f"unknown reader {name}; known: {', '.join(known for known, _, _ in READERS)}")


def find_reader(path: Path, head: bytes) -> Reader | None:
    """The first reader that takes a file with this head; None where none does."""
    names = [name for name, _, _ in READERS]
    if _EVENT_LIST.search(head):  # nothing else has one, and the other readers take their time to load
        names.insert(0, names.pop())
    for name in names:
        reader = reader_named(name)
        if reader.sniff(path, head):
            return reader
    return None


def pick_reader(path: Path) -> Reader:
    """The reader for `path`. Raises UnreadableInput where the file cannot be opened or has no known format."""
    head = open_head(path)
    reader = find_reader(path, head)
    if reader is None:
        what = "cannot be decompressed" if not head else "has no format that stepscope reads"
        raise UnreadableInput(
            f"{path} {what}",
            hint="give torch-profiler JSON (plain, .gz or .zst), an Nsight Systems .sqlite, or a run directory",
        )
    return reader


def looks_like_capture(head: bytes) -> bool:
    """Whether the head of a trace holds the annotation with which an engine marks the capture of a graph."""
    return _CAPTURE_ANNOTATION.search(head) is not None
