"""The bytes of a trace file: opened, hashed as they lie on disk, decompressed by what they are, not by their name."""

from __future__ import annotations

import hashlib
import os
import select
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard
from isal import isal_zlib

from traces.errors import UnreadableInput

RAW_BYTES = 256 * 1024  # read from the file at a time
PIECE_BYTES = 1 << 20  # decompressed at a time, however much the data shrank
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_POLL_MS = 200
_GZIP_ERROR: Any = isal_zlib.error  # the stub calls it an instance


class ByteSource:
    """Decompressed bytes of one file (regular or FIFO). `fault` says in words what ended it early, if anything did.

    `raw_bytes` counts bytes of the file as it lies on disk, `sha256()` is their hash once `fill` has returned 0.
    Raises UnreadableInput where the file cannot be opened.
    """

    def __init__(self, path: Path, stop: threading.Event | None = None) -> None:
        self.path = path
        self.fault: str | None = None
        self.raw_bytes = 0
        self.compression = "none"
        self._pieces: Iterator[bytes] | None = None
        self._piece = memoryview(b"")
        self._direct = 0
        self._hash = hashlib.sha256()
        self._stop = stop or threading.Event()
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror}", hint="check the path") from error
        mode = os.fstat(self._fd).st_mode
        if stat.S_ISDIR(mode):
            os.close(self._fd)
            raise UnreadableInput(f"{path} is a directory", hint="give a trace file, or ingest the directory")
        self._poll = None
        if not stat.S_ISREG(mode):  # a reader that waits for a FIFO's writer must still notice ctrl-C
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN | select.POLLHUP)

    def sha256(self) -> str:
        """Hex digest of all bytes read so far."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fill(self, view: memoryview) -> int:
        """Write decompressed bytes to `view` until it is full or the file ends; how many were written."""
        filled = 0
        while filled < len(view):
            if not self._piece and not self._next_piece(view, filled):
                break
            if self._direct:
                filled += self._direct
                self._direct = 0
                continue
            count = min(len(self._piece), len(view) - filled)
            view[filled : filled + count] = self._piece[:count]
            self._piece = self._piece[count:]
            filled += count
        return filled

    def _next_piece(self, view: memoryview, filled: int) -> bool:
        """Get the next piece, or, from a plain file, read straight into the view; False at the end."""
        if self._pieces is None:
            self._pieces = self._start()
        elif self.compression == "none":
            self._direct = self._read_into(view[filled:])
            return self._direct > 0
        self._piece = memoryview(next(self._pieces, b""))
        return len(self._piece) > 0

    def _start(self) -> Iterator[bytes]:
        head = b""
        while len(head) < 4:
            more = self._raw()
            if not more:
                break
            head += more
        if head.startswith(GZIP_MAGIC):
            self.compression = "gzip"
            return self._gzip(head)
        if head.startswith(ZSTD_MAGIC):
            self.compression = "zstd"
            return self._zstd(head)
        return iter((head,))

    def _wait(self) -> bool:
        while self._poll is not None and not self._poll.poll(_POLL_MS):
            if self._stop.is_set():
                return False
        return True

    def _raw(self) -> bytes:
        if not self._wait():
            return b""
        try:
            data = os.read(self._fd, RAW_BYTES)
        except OSError as error:
            self.fault = f"reading stopped: {error.strerror}"
            return b""
        self.raw_bytes += len(data)
        self._hash.update(data)
        return data

    def _read_into(self, view: memoryview) -> int:
        if not self._wait():
            return 0
        try:
            count = os.readv(self._fd, [view])
        except OSError as error:
            self.fault = f"reading stopped: {error.strerror}"
            return 0
        self.raw_bytes += count
        self._hash.update(view[:count])
        return count

    def _drain(self) -> None:
        while self._raw():
            pass

    def _gzip(self, data: bytes) -> Iterator[bytes]:
        member: Any = isal_zlib.decompressobj(wbits=31)
        while data:
            try:
                piece = member.decompress(data, PIECE_BYTES)
            except _GZIP_ERROR as error:
                self.fault = f"the gzip data is corrupt ({error})"
                self._drain()
                return
            if piece:
                yield piece
            if member.eof:
                data = (member.unused_data or self._raw()).lstrip(b"\0") or self._raw()
                if not data:
                    return
                if not data.startswith(GZIP_MAGIC[: len(data)]):
                    self.fault = "bytes after the end of the gzip data were not read"
                    self._drain()
                    return
                member = isal_zlib.decompressobj(wbits=31)
            else:
                data = member.unconsumed_tail or self._raw()
        self.fault = self.fault or "the gzip data ends early"

    def _zstd(self, head: bytes) -> Iterator[bytes]:
        raw: Any = _RawReader(head, self._raw)  # all that the library asks of a file is `read`
        frames = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(raw, read_across_frames=True)
        try:
            while piece := frames.read(PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            self.fault = f"the zstd data is corrupt ({error})"
            self._drain()


class _RawReader:
    """Gives back what was read to recognise the compression, then the rest of the file."""

    def __init__(self, head: bytes, more: Callable[[], bytes]) -> None:
        self._head = head
        self._more = more

    def read(self, _size: int = -1) -> bytes:
        head, self._head = self._head, b""
        return head or self._more()
