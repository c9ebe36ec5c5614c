"""One file from its bytes to the sink, in three bounded stages with a thread each: bytes, events, sink."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.kineto_json.delivery import Delivery
from traces.readers.kineto_json.facts import describe
from traces.readers.kineto_json.outline import MAX_EVENT_BYTES, Outline
from traces.readers.kineto_json.plain import PlainParser
from traces.readers.kineto_json.source import ByteSource
from traces.readers.kineto_json.tally import split_counts

METADATA_LIMIT = 4096  # 'M' events that are looked at
PROGRESS_S = 0.2


def read_document(
    path: Path,
    src: int,
    sink: Sink,
    options: ReadOptions,
    *,
    block_bytes: int = 4 << 20,
    max_event_bytes: int = MAX_EVENT_BYTES,
) -> ReadReport:
    """Parse one file into the sink; see `Reader.read`."""
    source = ByteSource(path)
    delivery = Delivery(src, sink.append)
    parser = PlainParser(delivery, stacks=options.stacks, metadata_limit=METADATA_LIMIT)
    outline = Outline(path, parser, max_event_bytes)
    left = b""
    told = time.monotonic()
    try:
        for piece in source.pieces():
            buffer = np.frombuffer(left + piece, dtype=np.uint8)
            position = outline.feed(buffer, 0, len(buffer))
            left = buffer[position:].tobytes()
            if options.progress is not None and time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                options.progress(source.raw_bytes, parser.seen)
    finally:
        source.close()
    if source.raw_bytes == 0:
        raise UnreadableInput(f"{path} is empty", hint="the profiler wrote nothing into it")
    parser.flush()
    report = ReadReport(path=path, format="kineto", sha256=source.sha256(), bytes_read=source.raw_bytes)
    report.events = parser.seen
    for kept, dropped in (split_counts(parser.counts), delivery.tally()):
        report.kept |= kept
        report.dropped |= dropped
    faults = [fault for fault in (source.fault, outline.truncation(left)) if fault]
    report.truncated = "; ".join(faults) or None
    describe(report, outline, parser.metadata)
    if options.progress is not None:
        options.progress(source.raw_bytes, parser.seen)
    return report
