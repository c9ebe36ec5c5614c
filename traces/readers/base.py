"""What every reader delivers: chunks of columns appended to staging tables, and a report of what was kept.

A reader parses one file and appends Arrow tables to a `Sink`. The staging tables live in a scratch database next to
the output; `link.py` turns them into the tables of the data contract with SQL. No reader makes a Python object per
event.

Staging tables (all in schema `stage`)
    sources   one row per file:  src, path, format, sha256, bytes, rank, trace_id, base_ns, shift_ns, meta (JSON text)
    strings   one row per distinct string of a file:  src, id (from 1; 0 is never used), text
    events    one row per event, see EVENT_COLUMNS
Times are BIGINT ns; `ts` is as in the file. `sources.shift_ns` (base_ns, and what ranks.py corrects) makes it absolute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa


class Cat(IntEnum):
    """Event categories as stored in `stage.events.cat`; the text forms are those of Kineto's `cat` field."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    GPU_ANNOTATION = 4  # never time (method §1)
    OP = 10  # cpu_op
    RUNTIME = 11  # cuda_runtime, hip runtime
    DRIVER = 12
    ANNOTATION = 13  # user_annotation
    PYTHON = 14  # python_function; kept in full only with `stacks`
    OVERHEAD = 15
    SYNC = 16  # nsys synchronization activities, cuda_sync
    INSTANT = 17


CATEGORY_TEXT: dict[str, Cat] = {
    "kernel": Cat.KERNEL,
    "gpu_memcpy": Cat.MEMCPY,
    "gpu_memset": Cat.MEMSET,
    "gpu_user_annotation": Cat.GPU_ANNOTATION,
    "cpu_op": Cat.OP,
    "cuda_runtime": Cat.RUNTIME,
    "hip_runtime": Cat.RUNTIME,
    "xpu_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.DRIVER,
    "hip_driver": Cat.DRIVER,
    "user_annotation": Cat.ANNOTATION,
    "python_function": Cat.PYTHON,
    "overhead": Cat.OVERHEAD,
    "cuda_sync": Cat.SYNC,
}

# Python frames that step detection needs, kept even without `stacks`: matched as substrings of the frame's name.
PYTHON_FRAMES_KEPT: tuple[str, ...] = (
    "execute_model",
    "run_batch",
    "sample_tokens",
    "forward_batch_generation",
)

EVENT_COLUMNS = pa.schema(
    [
        pa.field("src", pa.uint32(), nullable=False),  # ordinal of the file in this ingest
        pa.field("seq", pa.int64(), nullable=False),  # position of the event in the file, from 0
        pa.field("cat", pa.uint8(), nullable=False),  # Cat
        pa.field("name", pa.uint32(), nullable=False),  # string id; 0: no name
        pa.field("pid", pa.int64()),  # NULL where it is not a number
        pa.field("tid", pa.int64()),
        pa.field("ts", pa.int64()),  # ns since base_ns; NULL where missing, not finite or beyond int64
        pa.field("dur", pa.int64()),  # ns; NULL likewise. Negative values are delivered as they are
        pa.field("corr", pa.int64()),  # args.correlation
        pa.field("ext", pa.int64()),  # args["External id"]
        pa.field("device", pa.int64()),
        pa.field("stream", pa.int64()),
        pa.field("shapes", pa.uint32()),  # string id of the raw JSON of args["Input Dims"]
        pa.field("dtypes", pa.uint32()),  # string id of the raw JSON of args["Input type"]
        pa.field("bytes", pa.int64()),  # args.bytes of copies and sets
        pa.field("extra", pa.uint32()),  # string id of the raw args where the event is a collective ("Collective name")
    ]
)

STRING_COLUMNS = pa.schema(
    [
        pa.field("src", pa.uint32(), nullable=False),
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)


class Sink(Protocol):
    """Takes columns. `append` may be called from several threads; it serialises."""

    def append(self, table: str, data: pa.Table) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of an ingest that a reader heeds."""

    stacks: bool = False  # keep every python frame
    utc_offset_ns: int | None = None  # by which local times in sensor logs are ahead of UTC; None: not known
    sensor_interval_ns: int | None = None  # between samples of sensor logs that have no times; None: not known
    progress: Callable[[int, int], None] | None = None  # (bytes of input consumed, events seen so far)


@dataclass(slots=True, kw_only=True)
class ReadReport:
    """What came of one file."""

    path: Path
    format: str
    sha256: str | None = None
    bytes_read: int = 0  # of the file as it lies on disk
    events: int = 0  # complete events seen
    kept: dict[str, int] = field(default_factory=dict)  # rows appended, by staging table or category
    dropped: dict[str, int] = field(default_factory=dict)  # events not kept, by reason
    truncated: str | None = None  # what was cut off, in words; None for a whole file
    meta: dict[str, Any] = field(default_factory=dict)  # top-level keys of the file (decoded), less traceEvents
    rank: int | None = None
    trace_id: str | None = None
    base_ns: int = 0  # to be added to every `ts` of this file


class Reader(Protocol):
    """One file format."""

    name: str

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether `path`, whose first decompressed bytes are `head`, is of this format."""
        ...

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Parse `path` into the sink. Raises UnreadableInput only where nothing at all can be kept."""
        ...
