"""Server-sent events out of a byte stream that is cut anywhere."""

from __future__ import annotations

# No single event of a completion comes near this; a stream without a line end must not fill memory.
MAX_EVENT_BYTES = 64 << 20


class MalformedStreamError(ValueError):
    """The server sent something that is no event stream, or no event of the completion API."""


class EventDecoder:
    """Collects the `data` of events. Comments (keep-alives) and other fields are passed over."""

    __slots__ = ("_data", "_data_bytes", "_pending")

    def __init__(self) -> None:
        self._pending = b""  # an unfinished line
        self._data: list[bytes] = []  # data lines of an unfinished event
        self._data_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """The events that `received` completes, in order. Raises MalformedStreamError past MAX_EVENT_BYTES."""
        *lines, self._pending = (self._pending + received).split(b"\n")
        events = []
        for line in lines:
            event = self._take_line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        if self._data_bytes + len(self._pending) > MAX_EVENT_BYTES:
            raise MalformedStreamError(f"an event of more than {MAX_EVENT_BYTES:,} bytes")
        return events

    def close(self) -> list[bytes]:
        """What the end of the stream completes: some servers leave the last blank line out."""
        return self.feed(b"\n\n")

    def _take_line(self, line: bytes) -> bytes | None:
        if line:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._data_bytes += len(line)
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        self._data_bytes = 0
        return event
