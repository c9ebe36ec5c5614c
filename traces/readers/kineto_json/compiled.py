"""The event parser with compiled code: Python around `events.parse_list`, which does the work without the GIL.

Importing this raises ImportError where the compiled code is not to be had (see `native`).
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.readers.base import CATEGORY_TEXT, PYTHON_FRAMES_KEPT
from traces.readers.kineto_json import layout as at
from traces.readers.kineto_json import native, rows, tally
from traces.readers.kineto_json.blocks import PADDING
from traces.readers.kineto_json.delivery import Receiver
from traces.readers.kineto_json.outline import Buffer, SkipState

_TEXT_BYTES = 1 << 20
_TEXTS = 1 << 14
_TABLE_SLOTS = 1 << 14

Words = npt.NDArray[np.int64]


_parse, _skip, _rehash = (native.functions()[name] for name in ("parse_list", "skip_value", "rehash"))


class CompiledParser:
    """Event parser over raw addresses; see `outline.EventParser`. Buffers need PADDING bytes behind their end."""

    def __init__(self, receiver: Receiver, *, stacks: bool, metadata_limit: int) -> None:
        self.counts = tally.new_counts()
        self.metadata: list[bytes] = []
        self._receiver = receiver
        self._context = np.zeros(at.N_WORDS_OF_CONTEXT, dtype=np.int64)
        self._arrays: dict[int, npt.NDArray[Any]] = {}  # what the addresses in the context point to
        self._attach(at.COUNTS, self.counts)
        self._attach(at.SPANS, np.zeros(2 * metadata_limit, dtype=np.int64))
        self._attach(at.TEXT_ENDS, np.zeros(_TEXTS + 1, dtype=np.int64))
        self._set_lexicon()
        self._new_text(_TEXT_BYTES)
        self._new_table(_TABLE_SLOTS)
        settings = {
            at.ROW_LIMIT: rows.BATCH_ROWS, at.SPAN_LIMIT: metadata_limit, at.N_TEXTS_LIMIT: _TEXTS,
            at.N_FRAMES: -1 if stacks else len(PYTHON_FRAMES_KEPT),
            at.KEY_1: secrets.randbits(62), at.KEY_2: secrets.randbits(62),
        }  # fmt: skip
        for index, value in settings.items():
            self._context[index] = value
        self._new_cells()

    @property
    def seen(self) -> int:
        """Elements of the list so far."""
        return int(self._context[at.SEEN])

    @seen.setter
    def seen(self, value: int) -> None:
        self._context[at.SEEN] = value

    def parse(self, buffer: Buffer, position: int, end: int) -> tuple[int, bool]:
        """See `EventParser.parse`."""
        base = buffer.ctypes.data
        self._fit_scratch(len(buffer))
        while True:
            position = _parse(self._context.ctypes.data, base + position, base + end) - base
            self._take_metadata(buffer, base)
            reason = self._context[at.REASON]
            if reason == at.NEED_TEXT:
                self._make_room_for_text()
            elif reason == at.NEED_ROOM:
                self._make_room()
            else:
                return position, bool(reason == at.LIST_ENDED)

    def skip(self, buffer: Buffer, position: int, end: int, state: SkipState) -> int:
        """See `EventParser.skip`."""
        base = buffer.ctypes.data
        after = _skip(base + position, base + end, state.ctypes.data)
        return after if after < 0 else after - base

    def flush(self) -> None:
        """Hand over the rows and strings gathered so far."""
        self._flush_texts()
        filled = int(self._context[at.ROWS])
        if filled:
            self._receiver.events(self._arrays[at.CELLS][:, :filled])
            self._new_cells()

    def _flush_texts(self) -> None:
        count, used = int(self._context[at.N_TEXTS]), int(self._context[at.TEXT_BYTES])
        if count:
            first = int(self._context[at.NEXT_ID]) - count + 1
            ends = self._arrays[at.TEXT_ENDS][: count + 1].astype(np.int32)
            self._receiver.strings(first, ends, self._arrays[at.TEXT][:used].copy())
            self._context[at.N_TEXTS] = self._context[at.TEXT_BYTES] = 0

    def _make_room_for_text(self) -> None:
        self._flush_texts()
        needed = int(self._context[at.TEXT_NEEDED])
        if needed > self._context[at.TEXT_LIMIT]:
            self._new_text(2 * needed)

    def _make_room(self) -> None:
        if self._context[at.ROWS] >= self._context[at.ROW_LIMIT]:
            self.flush()
        slots = int(self._context[at.TABLE_MASK]) + 1
        if 2 * (self._context[at.TABLE_USED] + at.ENTRIES_PER_EVENT) >= slots:
            old = self._arrays[at.TABLE]
            self._new_table(4 * slots)
            _rehash(self._context.ctypes.data, old.ctypes.data, slots)

    def _take_metadata(self, buffer: Buffer, base: int) -> None:
        count = int(self._context[at.N_SPANS])
        if count:
            for start, stop in (self._arrays[at.SPANS][: 2 * count].reshape(-1, 2) - base).tolist():
                self.metadata.append(buffer[start:stop].tobytes())
            self._context[at.N_SPANS] = 0
            self._context[at.SPAN_LIMIT] -= count

    def _attach(self, index: int, array: npt.NDArray[Any]) -> None:
        self._arrays[index] = array
        self._context[index] = array.ctypes.data

    def _fit_scratch(self, longest: int) -> None:
        if self._context[at.SCRATCH_PART] < longest:
            self._attach(at.SCRATCH, np.empty(4 * longest + PADDING, dtype=np.uint8))
            self._context[at.SCRATCH_PART] = longest

    def _new_text(self, size: int) -> None:
        self._attach(at.TEXT, np.empty(size, dtype=np.uint8))
        self._context[at.TEXT_LIMIT] = size

    def _new_table(self, slots: int) -> None:
        self._attach(at.TABLE, np.zeros(3 * slots, dtype=np.int64))
        self._context[at.TABLE_MASK] = slots - 1

    def _new_cells(self) -> None:
        self._attach(at.CELLS, np.empty((rows.N_COLUMNS, int(self._context[at.ROW_LIMIT])), dtype=np.int64))
        self._context[at.ROWS] = 0

    def _set_lexicon(self) -> None:
        own = "python_function"
        words = [own, *PYTHON_FRAMES_KEPT, *(text for text in CATEGORY_TEXT if text != own)]
        codes = [CATEGORY_TEXT[own].value, *(-1 for _ in PYTHON_FRAMES_KEPT)]
        codes += [cat.value for text, cat in CATEGORY_TEXT.items() if text != own]
        table = np.zeros(at.WORD_BYTES * (len(words) + 2), dtype=np.uint8)
        for index, word in enumerate(words):
            raw = np.frombuffer(word.encode(), dtype=np.uint8)
            table[at.WORD_BYTES * index : at.WORD_BYTES * index + len(raw)] = raw
        self._attach(at.LEXICON, table)
        self._attach(at.LENGTHS, np.array([len(word) for word in words], dtype=np.int64))
        self._attach(at.CODES, np.array(codes, dtype=np.int64))
        self._context[at.N_WORDS] = len(words)
