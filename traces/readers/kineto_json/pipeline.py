"""One file from its bytes to the sink, in three bounded stages with a thread each: bytes, events, sink."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.kineto_json.blocks import BlockReader
from traces.readers.kineto_json.delivery import Delivery
from traces.readers.kineto_json.facts import describe
from traces.readers.kineto_json.outline import MAX_EVENT_BYTES, EventParser, Outline
from traces.readers.kineto_json.plain import PlainParser
from traces.readers.kineto_json.source import ByteSource
from traces.readers.kineto_json.stages import SinkStage
from traces.readers.kineto_json.tally import split_counts

if TYPE_CHECKING:
    from traces.readers.kineto_json.compiled import CompiledParser

METADATA_LIMIT = 4096  # 'M' events that are looked at
BLOCK_BYTES = 4 << 20
PROGRESS_S = 0.2
SMALL_BYTES = 2 << 20  # a file up to this is read before the compiled code is even loaded
NO_JIT = "STEPSCOPE_NO_JIT"  # environment variable: set to 1, no code is compiled


def read_document(
    path: Path,
    src: int,
    sink: Sink,
    options: ReadOptions,
    *,
    block_bytes: int = BLOCK_BYTES,
    max_event_bytes: int = MAX_EVENT_BYTES,
    compiled: bool | None = None,
) -> ReadReport:
    """Parse one file into the sink; see `Reader.read`. `compiled` forces one of the two parsers."""
    blocks = BlockReader(path, block_bytes)
    delivery = Delivery(src, sink.append)
    with blocks, SinkStage(delivery) as stage:
        if compiled is None:
            compiled = blocks.wait_for_more_than(SMALL_BYTES)
        parser = _parser(stage, options, compiled=compiled)
        outline = Outline(path, parser, max_event_bytes)
        _feed(blocks, outline, parser, options)
        parser.flush()
    if options.progress is not None:
        options.progress(blocks.source.raw_bytes, parser.seen)
    report = ReadReport(path=path, format="kineto", events=parser.seen)
    _conclude(report, blocks.source, outline, blocks.left)
    for kept, dropped in (split_counts(parser.counts), delivery.tally()):
        report.kept |= kept
        report.dropped |= dropped
    describe(report, outline, parser.metadata)
    return report


def _feed(blocks: BlockReader, outline: Outline, parser: EventParser, options: ReadOptions) -> None:
    told = time.monotonic()
    for block in blocks:
        position = outline.feed(block.buffer, block.start, block.end)
        blocks.left = block.buffer[position : block.end].tobytes()
        if options.progress is not None and time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            options.progress(blocks.source.raw_bytes, parser.seen)


def _parser(stage: SinkStage, options: ReadOptions, *, compiled: bool) -> CompiledParser | PlainParser:
    """The compiled parser, or the plain one where compiled code is not worth its start, unwanted or not to be had."""
    if compiled and os.environ.get(NO_JIT) != "1" and sys.byteorder == "little":
        try:
            from traces.readers.kineto_json.compiled import CompiledParser

            return CompiledParser(stage, stacks=options.stacks, metadata_limit=METADATA_LIMIT)
        except ImportError:
            pass
    return PlainParser(stage, stacks=options.stacks, metadata_limit=METADATA_LIMIT)


def _conclude(report: ReadReport, source: ByteSource, outline: Outline, left: bytes) -> None:
    """What was read and what was lost. Raises UnreadableInput where there was no list of events."""
    if source.raw_bytes == 0:
        raise UnreadableInput(f"{report.path} is empty", hint="the profiler wrote nothing into it")
    faults = [fault for fault in (source.fault, outline.truncation(left)) if fault]
    if not outline.has_events:
        reason = "; ".join(faults) or "it has no traceEvents"
        raise UnreadableInput(f"{report.path} holds no list of events: {reason}", hint="is it a torch-profiler trace?")
    report.sha256 = source.sha256()
    report.bytes_read = source.raw_bytes
    report.truncated = "; ".join(faults) or None
