"""What an ingest tells on stderr while it works and when it is done."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from traces.printable import printable

if TYPE_CHECKING:
    from traces.ingest import IngestReport

_PERIOD_S = 0.2


class IngestProgress:
    """One line that is rewritten on a terminal, and silent elsewhere until the end."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = not quiet and self._stream.isatty()
        self._began = time.monotonic()
        self._last = 0.0
        self._dirty = False

    def __enter__(self) -> IngestProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._dirty:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def update(self, name: str, done: int, total: int, events: int) -> None:
        """`done` of `total` bytes are read, `events` events seen."""
        now = time.monotonic()
        if not self._live or now - self._last < _PERIOD_S:
            return
        self._last, self._dirty = now, True
        elapsed = max(now - self._began, 1e-3)
        share = done / total if total else 1.0
        remaining = elapsed * (1 - share) / share if share > 0.02 else None
        eta = f", {remaining:.0f} s left" if remaining is not None else ""
        text = f"{printable(name)[:40]}  {share:4.0%}  {done / 1e6:.0f} MB  {events / elapsed / 1e3:.0f}k events/s{eta}"
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()

    def describe(self, report: IngestReport) -> list[str]:
        """Lines that say what was kept, what was left out and why."""
        if report.already:
            return [f"already ingested: these files are run {report.run_id} of {report.target.name}; nothing changed"]
        lines = []
        for item in report.files:
            dropped = ", ".join(f"{count:,} {reason}" for reason, count in item.dropped.items() if count)
            text = f"read {printable(item.path.name)}: {item.events:,} events" + (
                f"; not kept: {dropped}" if dropped else ""
            )
            lines.append(text)
            if item.truncated:
                lines.append(f"warning: {printable(item.path.name)}: {printable(item.truncated)}")
        lines += [f"left out {printable(name)}: {printable(why)}" for name, why in report.skipped]
        lines.append(f"done in {report.seconds:.1f} s")
        return lines
