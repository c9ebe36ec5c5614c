"""Decompressed blocks of a file, read ahead in a thread of their own into a few buffers that are used again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from traces.readers.kineto_json.outline import Buffer
from traces.readers.kineto_json.source import ByteSource

PADDING = 128  # readable bytes that scanners need behind the end of a buffer
HEADROOM = 256 * 1024  # in front of a block, for what was left of the one before
N_BUFFERS = 3


@dataclass(slots=True, kw_only=True)
class Block:
    """Bytes `start` to `end` of `buffer`: what was left of the previous block, then new ones."""

    buffer: Buffer
    start: int
    end: int


class BlockReader:
    """Context manager and iterator over the blocks of one file. After each block, say what is `left` of it.

    Raises UnreadableInput where the file cannot be opened.
    """

    def __init__(self, path: Path, block_bytes: int) -> None:
        self._stop = threading.Event()
        self.source = ByteSource(path, self._stop)
        self.left = b""  # bytes to be put in front of the next block
        self._block_bytes = block_bytes
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Buffer, int] | None] = queue.SimpleQueue()
        self._first: tuple[Buffer, int] | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kineto-bytes", daemon=True)
        for _ in range(N_BUFFERS):
            self._free.put(np.zeros(HEADROOM + block_bytes + PADDING, dtype=np.uint8))

    def __enter__(self) -> BlockReader:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._free.put(np.zeros(0, dtype=np.uint8))  # wakes a thread that waits for a buffer
        self._thread.join()
        self.source.close()

    def wait_for_more_than(self, count: int) -> bool:
        """Whether more than `count` bytes came with the first block; waits for it."""
        self._first = self._ready.get()
        self._ended = self._first is None
        return self._first is not None and self._first[1] > count

    def _next(self) -> tuple[Buffer, int] | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._ready.get() if not self._ended else None

    def __iter__(self) -> Iterator[Block]:
        while (item := self._next()) is not None:
            buffer, count = item
            left = np.frombuffer(self.left, dtype=np.uint8)
            if len(left) <= HEADROOM:
                buffer[HEADROOM - len(left) : HEADROOM] = left
                yield Block(buffer=buffer, start=HEADROOM - len(left), end=HEADROOM + count)
            else:
                joined = np.zeros(len(left) + count + PADDING, dtype=np.uint8)
                joined[: len(left)] = left
                joined[len(left) : len(left) + count] = buffer[HEADROOM : HEADROOM + count]
                yield Block(buffer=joined, start=0, end=len(left) + count)
            self._free.put(buffer)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                buffer = self._free.get()
                if len(buffer) == 0:
                    break
                count = self.source.fill(buffer.data[HEADROOM : HEADROOM + self._block_bytes])
                if count == 0:
                    break
                self._ready.put((buffer, count))
        except Exception as error:  # noqa: BLE001  # handed to the thread that waits for blocks
            self._error = error
        finally:
            self._ready.put(None)
