"""The outline of a trace document, piece by piece: where the event list begins and ends, and everything beside it.

The document is an object with `traceEvents` somewhere in it, or the list itself. Bytes arrive in pieces cut anywhere;
what is not consumed is handed in again in front of the next piece.
"""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from traces.errors import UnreadableInput
from traces.readers.kineto_json.decimals import whole_number
from traces.readers.kineto_json.rows import NULL
from traces.readers.kineto_json.tally import TOO_LARGE, Counts
from traces.readers.kineto_json.text import decode_string, decode_value

Buffer = npt.NDArray[np.uint8]
SkipState = npt.NDArray[np.int64]  # kind, depth, escaped, in string: see `Kind`

MAX_EVENT_BYTES = 8 << 20  # a larger one is skipped and counted: memory stays bounded, and so is what a name may cost
MAX_VALUE_BYTES = 4 << 20  # of one top-level value
MAX_META_BYTES = 16 << 20  # of all of them

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"[\x00-\x20,]*+")
_NO_KEY = re.compile(rb'[^"}]++')
_KEY = re.compile(rb'"((?:[^"\\]++|\\.)*+)"[\x00-\x20]*+(.)', re.DOTALL)


class Kind:
    """What a skipper is inside of (`state[0]`)."""

    NESTED, STRING, BARE = 0, 1, 2


class EventParser(Protocol):
    """Parses the elements of the event list; a compiled and a plain one exist."""

    counts: Counts
    seen: int  # elements of the list so far

    def parse(self, buffer: Buffer, position: int, end: int) -> tuple[int, bool]:
        """Take whole elements from `buffer[position:end]`: (first byte not consumed, whether the list ended)."""
        ...

    def skip(self, buffer: Buffer, position: int, end: int, state: SkipState) -> int:
        """Position behind the value that `state` is inside of, or -1 where it goes on beyond `end`."""
        ...


def skip_state(first_byte: int) -> SkipState:
    """State of a skipper that stands on the first byte of a value."""
    kind = Kind.STRING if first_byte == 0x22 else Kind.NESTED if first_byte in (0x7B, 0x5B) else Kind.BARE
    return np.array([kind, 0, 0, 0], dtype=np.int64)


class _State(IntEnum):
    START = 0
    KEY = 1
    VALUE = 2  # before its first byte
    INSIDE = 3  # of a top-level value
    EVENTS = 4
    INSIDE_EVENT = 5  # of one that is too large
    DONE = 6


_UNFINISHED = {
    _State.START: "the file holds no JSON value",
    _State.KEY: "the file ends before its closing brace",
    _State.VALUE: "the file ends before its closing brace",
    _State.INSIDE: "the file ends inside a top-level value",
    _State.INSIDE_EVENT: "the file ends inside an event",
}


class Outline:
    """State machine over the pieces of one document; `meta` and `base_ns` are what stands beside the events."""

    def __init__(self, path: Path, parser: EventParser, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.meta: dict[str, Any] = {}
        self.base_ns = 0
        self.undecoded: list[str] = []  # top-level keys whose value was too large or no JSON
        self.has_events = False
        self._path = path
        self._parser = parser
        self._max_event = max_event_bytes
        self._state = _State.START
        self._is_list = False
        self._key = ""
        self._skip = skip_state(0)
        self._raw = bytearray()
        self._raw_total = 0
        self._trailing = 0

    def feed(self, buffer: Buffer, position: int, end: int) -> int:
        """Take what can be taken from `buffer[position:end]`; the first byte to be handed in again."""
        while position < end:
            before, state = position, self._state
            position = self._step(buffer, position, end)
            if position == before and self._state == state:
                break
        return position

    def truncation(self, left: bytes) -> str | None:
        """What is missing at the end of the document; `left` are the bytes no step could consume."""
        if self._state == _State.DONE:
            return f"{self._trailing} bytes after the end of the JSON were not read" if self._trailing else None
        if self._state == _State.EVENTS:
            rest = len(left.strip(b", \t\r\n"))
            return f"the file ends inside an event ({rest} bytes lost)" if rest else "the list of events is not closed"
        return _UNFINISHED[self._state]

    def _step(self, buffer: Buffer, position: int, end: int) -> int:
        match self._state:
            case _State.START:
                return self._start(buffer, position, end)
            case _State.KEY:
                return self._read_key(buffer, position, end)
            case _State.VALUE:
                return self._begin_value(buffer, position, end)
            case _State.INSIDE:
                return self._inside(buffer, position, end)
            case _State.EVENTS:
                return self._events(buffer, position, end)
            case _State.INSIDE_EVENT:
                return self._inside_event(buffer, position, end)
            case _:
                self._trailing += len(bytes(buffer[position:end]).translate(None, b"\0 \t\r\n"))
                return end

    def _start(self, buffer: Buffer, position: int, end: int) -> int:
        head = bytes(buffer[position : position + 3])
        if _BOM.startswith(head) and len(head) < 3:
            return position
        if head == _BOM:
            position += 3
        position = _after(_BLANK, buffer, position, end)
        if position == end:
            return position
        first = buffer[position]
        if first not in (0x7B, 0x5B):
            raise UnreadableInput(f"{self._path} is no JSON", hint="give a trace as the torch profiler writes it")
        self._is_list = first == 0x5B
        self.has_events = self._is_list
        self._state = _State.EVENTS if self._is_list else _State.KEY
        return position + 1

    def _read_key(self, buffer: Buffer, position: int, end: int) -> int:
        position = _after(_BLANK, buffer, position, end)
        if position == end:
            return position
        if buffer[position] == 0x7D:
            self._state = _State.DONE
            return position + 1
        if buffer[position] != 0x22:  # has no place here and is passed over
            return _after(_NO_KEY, buffer, position, end)
        match = _KEY.match(buffer.data, position, end)
        if match is None:
            return position if end - position <= MAX_VALUE_BYTES else position + 1
        self._key = decode_string(match.group(1)).decode()
        if match.group(2) != b":":
            return match.start(2)
        self._state = _State.VALUE
        return match.end()

    def _begin_value(self, buffer: Buffer, position: int, end: int) -> int:
        position = _after(_BLANK, buffer, position, end)
        if position == end:
            return position
        first = int(buffer[position])
        if first == 0x5B and self._key == "traceEvents":
            self._state = _State.EVENTS
            self.has_events = True
            return position + 1
        self._skip = skip_state(first)
        self._raw = bytearray()
        self._state = _State.INSIDE
        return position

    def _inside(self, buffer: Buffer, position: int, end: int) -> int:
        after = self._parser.skip(buffer, position, end, self._skip)
        stop = end if after < 0 else after
        if self._raw_total <= MAX_META_BYTES and len(self._raw) <= MAX_VALUE_BYTES:
            self._raw += buffer[position:stop].tobytes()
        if after >= 0:
            self._take_value()
            self._state = _State.KEY
        return stop

    def _take_value(self) -> None:
        raw, self._raw = bytes(self._raw), bytearray()
        if len(raw) > MAX_VALUE_BYTES or self._raw_total + len(raw) > MAX_META_BYTES:
            self.undecoded.append(self._key)
            return
        self._raw_total += len(raw)
        try:
            self.meta[self._key] = decode_value(raw)
        except ValueError:
            self.undecoded.append(self._key)
            return
        if self._key == "baseTimeNanoseconds":
            base = whole_number(raw.strip(b'"'))
            self.base_ns = 0 if base == NULL else base

    def _events(self, buffer: Buffer, position: int, end: int) -> int:
        position, ended = self._parser.parse(buffer, position, end)
        if ended:
            self._state = _State.DONE if self._is_list else _State.KEY
        elif end - position > self._max_event:
            self._skip = skip_state(int(buffer[position]))
            self._state = _State.INSIDE_EVENT
        return position

    def _inside_event(self, buffer: Buffer, position: int, end: int) -> int:
        after = self._parser.skip(buffer, position, end, self._skip)
        if after < 0:
            return end
        self._parser.counts[TOO_LARGE] += 1
        self._parser.seen += 1
        self._state = _State.EVENTS
        return after


def _after(pattern: re.Pattern[bytes], buffer: Buffer, position: int, end: int) -> int:
    match = pattern.match(buffer.data, position, end)
    return match.end() if match else position
