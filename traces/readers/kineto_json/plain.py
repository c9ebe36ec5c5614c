"""The event parser without compiled code: slower, the same rows.

An event is cut by matching its brackets, strings respected, and its members are then read leniently: bare words,
missing or doubled commas and stray backslashes are accepted; what still does not parse is counted as malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from traces.readers.base import CATEGORY_TEXT, PYTHON_FRAMES_KEPT, Cat
from traces.readers.kineto_json import rows, tally
from traces.readers.kineto_json.decimals import time_ns, whole_number
from traces.readers.kineto_json.delivery import Receiver
from traces.readers.kineto_json.outline import Buffer, Kind, SkipState
from traces.readers.kineto_json.text import compact_json, decode_string

_STRING = rb'"((?:[^"\\]++|\\.)*+)"'
_BRACKET = re.compile(rb"(?:" + _STRING + rb')|([{\[])|([}\]])|(")', re.DOTALL)
_BLANK = re.compile(rb"[\x00-\x20,]*+")
_BARE = re.compile(rb'[^\x00-\x20,}\]{\[":]*+')
_MEMBER = re.compile(
    rb"[\x00-\x20,]*+(?:(})|" + _STRING + rb"[\x00-\x20]*+:[\x00-\x20]*+(?:" + _STRING + rb"|(?=[{\[])()|"
    rb'([^\x00-\x20,}\]{\[":]*+)))',
    re.DOTALL,
)
_TIMES = {b"ts": rows.TS, b"dur": rows.DUR}
_IDS = {b"pid": rows.PID, b"tid": rows.TID}
_ARG_IDS = {
    b"correlation": rows.CORR,
    b"External id": rows.EXT,
    b"device": rows.DEVICE,
    b"stream": rows.STREAM,
    b"bytes": rows.BYTES,
}
_ARG_JSON = {b"Input Dims": rows.SHAPES, b"Input type": rows.DTYPES}
_REASON_OF_PHASE = {
    b"M": tally.METADATA,
    b"i": tally.INSTANT, b"I": tally.INSTANT, b"R": tally.INSTANT,
    b"s": tally.FLOW, b"t": tally.FLOW, b"f": tally.FLOW,
    b"C": tally.COUNTER,
}  # fmt: skip
_CATEGORIES = {text.encode(): int(cat) for text, cat in CATEGORY_TEXT.items()}
_PHASES = {b"X": rows.PH_COMPLETE, b"B": rows.PH_BEGIN, b"E": rows.PH_END}
_FRAMES = tuple(text.encode() for text in PYTHON_FRAMES_KEPT)

# A value: its bytes as text (strings decoded, the rest raw) and what it is ('s' string, 'j' object or list, 'b' bare).
_Value = tuple[bytes, str]


class _MalformedEventError(Exception):
    pass


class _SkippedFrameError(Exception):
    pass


class PlainParser:
    """Event parser in plain Python; see `outline.EventParser`."""

    def __init__(self, delivery: Receiver, *, stacks: bool, metadata_limit: int) -> None:
        self.counts = tally.new_counts()
        self.seen = 0
        self.metadata: list[bytes] = []
        self._delivery = delivery
        self._stacks = stacks
        self._metadata_limit = metadata_limit
        self._rows: list[list[int]] = []
        self._ids: dict[bytes, int] = {}
        self._new: list[bytes] = []

    def parse(self, buffer: Buffer, position: int, end: int) -> tuple[int, bool]:
        """See `EventParser.parse`."""
        data = bytes(buffer[position:end])
        at = 0
        while True:
            start = _after_blank(data, at)
            if start == len(data):
                return position + start, False
            if data[start] == 0x5D:
                return position + start + 1, True
            at = _element_end(data, start)
            if at < 0:
                return position + start, False
            self._element(data[start:at])
            self.seen += 1
            if len(self._rows) >= rows.BATCH_ROWS:
                self.flush()

    def skip(self, buffer: Buffer, position: int, end: int, state: SkipState) -> int:
        """See `EventParser.skip`."""
        data = bytes(buffer[position:end])
        if state[0] == Kind.BARE:
            stop = _after(_BARE, data, 0)
            return position + stop if stop < len(data) else -1
        at = 0
        while at < len(data):
            if state[2]:
                state[2] = 0
                at += 1
                continue
            at = _after(_QUIET_STRING if state[3] else _QUIET, data, at)
            if at == len(data):
                break
            at += 1
            if _skip_step(data[at - 1], state):
                return position + at
        return -1

    def flush(self) -> None:
        """Hand over the rows and strings gathered so far."""
        if self._new:
            first = len(self._ids) - len(self._new) + 1
            offsets = np.cumsum([0, *map(len, self._new)], dtype=np.int32)
            self._delivery.strings(first, offsets, np.frombuffer(b"".join(self._new), dtype=np.uint8))
            self._new = []
        if self._rows:
            self._delivery.events(np.array(self._rows, dtype=np.int64).T.copy())
            self._rows = []

    def _element(self, raw: bytes) -> None:
        if not raw.startswith(b"{"):
            self.counts[tally.NOT_AN_EVENT] += 1
            return
        try:
            fields, args = self._fields(raw)
        except _MalformedEventError:
            self.counts[tally.MALFORMED] += 1
            return
        except _SkippedFrameError:
            self.counts[tally.FRAME] += 1
            return
        phase = fields.get(b"ph", (b"", "b"))
        if phase[1] != "s" or phase[0] not in _PHASES:
            reason = tally.OTHER_PHASE if phase[1] == "s" and phase[0] else tally.NO_PHASE
            reason = _REASON_OF_PHASE.get(phase[0], reason) if phase[1] == "s" else reason
            self.counts[reason] += 1
            if reason == tally.METADATA and len(self.metadata) < self._metadata_limit:
                self.metadata.append(raw)
            return
        self._rows.append(self._row(_PHASES[phase[0]], fields, args))

    def _fields(self, raw: bytes) -> tuple[dict[bytes, _Value], list[tuple[bytes, _Value]]]:
        """(members, members of args) of an event. Raises _SkippedFrameError as soon as it is known to be one."""
        fields: dict[bytes, _Value] = {}
        args: list[tuple[bytes, _Value]] = []
        is_frame = False
        for key, value in _members(raw):
            if key == b"args":
                args = list(_members(value[0])) if value[0].startswith(b"{") and value[1] == "j" else []
            fields[key] = value
            if key == b"cat":
                is_frame = value == (b"python_function", "s")
            if is_frame and not self._stacks and key in (b"cat", b"name"):
                name = fields.get(b"name", (b"", "b"))
                if name[1] == "s" and not any(text in name[0] for text in _FRAMES):
                    raise _SkippedFrameError
        if is_frame and not self._stacks and fields.get(b"name", (b"", "b"))[1] != "s":
            raise _SkippedFrameError
        return fields, args

    def _row(self, phase: int, fields: dict[bytes, _Value], args: list[tuple[bytes, _Value]]) -> list[int]:
        row = [rows.NULL] * rows.N_COLUMNS
        row[rows.SEQ] = self.seen
        row[rows.PHASE] = phase
        category = fields.get(b"cat", (b"", "b"))
        row[rows.CAT] = _CATEGORIES.get(category[0], int(Cat.OTHER)) if category[1] == "s" else int(Cat.OTHER)
        name = fields.get(b"name", (b"", "b"))
        row[rows.NAME] = self._intern(name[0]) if name[1] == "s" else 0
        for key, column in _TIMES.items():
            row[column] = _number(fields.get(key), time_ns)
        for key, column in _IDS.items():
            row[column] = _number(fields.get(key), whole_number)
        row[rows.THREAD] = hash(tuple(_thread_part(fields.get(key), row[column]) for key, column in _IDS.items()))
        row[rows.SHAPES] = row[rows.DTYPES] = row[rows.EXTRA] = 0
        last = dict(args)
        for key, column in _ARG_IDS.items():
            row[column] = _number(last.get(key), whole_number)
        for key, column in _ARG_JSON.items():
            row[column] = self._intern(compact_json(last[key][0])) if last.get(key, (b"", ""))[1] == "j" else 0
        if b"Collective name" in last:
            row[rows.EXTRA] = self._intern(compact_json(fields[b"args"][0]))
        return row

    def _intern(self, text: bytes) -> int:
        known = self._ids.get(text)
        if known is None:
            known = self._ids[text] = len(self._ids) + 1
            self._new.append(text)
        return known


_QUIET = re.compile(rb'[^"{}\[\]]*+')
_QUIET_STRING = re.compile(rb'[^"\\]*+')


def _skip_step(byte: int, state: SkipState) -> bool:
    """Advance over one byte that matters (quote, backslash or bracket); whether the value ended with it."""
    if state[3]:
        if byte == 0x5C:
            state[2] = 1
            return False
        state[3] = 0
        return bool(state[0] == Kind.STRING)
    if byte == 0x22:
        state[3] = 1
        return False
    state[1] += 1 if byte in (0x7B, 0x5B) else -1
    return bool(state[1] <= 0)


def _after_blank(data: bytes, at: int) -> int:
    return _after(_BLANK, data, at)


def _after(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def _element_end(data: bytes, start: int) -> int:
    """End of the element that begins at `start`; -1 where it goes on beyond the data."""
    if data[start] not in b'"{[':
        stop = _after(_BARE, data, start)
        return -1 if stop == len(data) else max(stop, start + 1)
    depth = 0
    for match in _BRACKET.finditer(data, start):
        if match.lastindex == 4:
            return -1  # a string that does not end here
        if match.lastindex == 2:
            depth += 1
        elif match.lastindex == 3:
            depth -= 1
        if depth <= 0:
            return match.end()
    return -1


def _members(raw: bytes) -> Iterator[tuple[bytes, _Value]]:
    """Members of the object `raw`, in order. Raises _MalformedEventError."""
    at = 1
    while True:
        match = _MEMBER.match(raw, at)
        if match is None:
            raise _MalformedEventError
        if match.group(1):
            return
        key = decode_string(match.group(2))
        at = match.end()
        if match.group(3) is not None:
            yield key, (decode_string(match.group(3)), "s")
        elif match.group(4) is not None:
            stop = _element_end(raw, at)
            if stop < 0:
                raise _MalformedEventError
            yield key, (raw[at:stop], "j")
            at = stop
        else:
            yield key, (match.group(5), "b")


def _number(value: _Value | None, convert: Callable[[bytes], int]) -> int:
    return rows.NULL if value is None or value[1] == "j" else convert(value[0])


def _thread_part(value: _Value | None, number: int) -> int | bytes | None:
    if number != rows.NULL:
        return number
    return value[0] if value is not None and value[1] == "s" else None
