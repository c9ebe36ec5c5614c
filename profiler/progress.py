"""Telling a person what is going on: stages with elapsed time, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO


class Observer(Protocol):
    """Hears what a run is doing. Calls are frequent and must be cheap."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins; the one before it is over."""
        ...

    def progress(self, text: str) -> None:
        """Where the current stage stands; may be shown or not."""
        ...

    def note(self, text: str) -> None:
        """Something to be read: a warning, a fallback."""
        ...

    def close(self) -> None:
        """The last stage is over."""
        ...


class Silent:
    """Hears everything, says nothing."""

    def stage(self, name: str, detail: str = "") -> None: ...

    def progress(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """One line per stage, rewritten in place on a terminal; on a pipe only when a stage ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._out = sys.stderr if stream is None else stream
        self._live = self._out.isatty()
        self._began = self._last_shown = time.monotonic()
        self._stage_began = self._began
        self._name = ""
        self._text = ""

    def stage(self, name: str, detail: str = "") -> None:
        self._end_stage()
        self._name, self._text, self._stage_began = name, detail, time.monotonic()
        self._show()

    def progress(self, text: str) -> None:
        self._text = text
        if time.monotonic() - self._last_shown >= 0.2:
            self._show()

    def note(self, text: str) -> None:
        if text:
            self._out.write(f"{self._clear()}  ! {text}\n")
            self._show()

    def close(self) -> None:
        self._end_stage()

    def _end_stage(self) -> None:
        if self._name:
            self._out.write(f"{self._clear()}{self._line()}\n")
            self._out.flush()
        self._name = ""

    def _show(self) -> None:
        self._last_shown = time.monotonic()
        if self._live and self._name:
            self._out.write(f"{self._clear()}{self._line()}")
            self._out.flush()

    def _line(self) -> str:
        now = time.monotonic()
        head = f"[{now - self._began:6.1f} s] {self._name} ({now - self._stage_began:.1f} s)"
        return f"{head}  {self._text}"[:200] if self._text else head

    def _clear(self) -> str:
        return "\r\x1b[2K" if self._live else ""
