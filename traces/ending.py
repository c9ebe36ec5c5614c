"""The end of a command by a signal: whatever is half made goes, and the exit code says which signal it was."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_DUCKDB_INTERRUPTED = "Query interrupted"  # what a signal becomes inside a statement: a bare RuntimeError


class Terminated(BaseException):
    """SIGTERM came."""


class Ending:
    """A block that SIGTERM ends by an exception, as ctrl-C does, so that scratch files go; a second one ends the process.

    Raises Terminated or KeyboardInterrupt, also where DuckDB made something else of them.
    """

    def __init__(self) -> None:
        self._terminated = False
        self._handling = False

    def __enter__(self) -> Ending:
        in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handler
        if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
            self._handling = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._handling:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if isinstance(error, RuntimeError) and str(error) == _DUCKDB_INTERRUPTED:
            raise (Terminated if self._terminated else KeyboardInterrupt) from error

    def _end(self, _number: int, _frame: Any) -> None:
        self._terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    @property
    def said(self) -> tuple[str, int]:
        """What ended the block, and its exit code."""
        return ("terminated", _TERMINATED) if self._terminated else ("interrupted", _INTERRUPTED)
