"""One recording of the torch profiler: start, bound, stop, with deadlines.

The window runs from the end of the start call to the beginning of the stop call, as the hook marked them inside the
engine; without the hook the client's own clock has to do. Stopping blocks the engine for as long as it writes, so the
window is bounded and the deadline grows with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from profiler.config import ProfileConfig, Window
from profiler.engines.base import Engine, Launch
from profiler.ledger_tail import LedgerTail
from profiler.server import Refusal, Server
from traces.errors import EngineFailed
from traces.manifest import CaptureWindow

START_TIMEOUT_S = 120.0
POLL_S = 0.1
# Without a ledger steps cannot be counted; this bounds the window instead.
BLIND_WINDOW_S = 15.0
MARK_WAIT_S = 1.0
SETTLED_S = 2.0


class StopTimeout(EngineFailed):
    """stop_profile was not over by its deadline: the engine has to go."""


class Capture:
    """State of one recording."""

    def __init__(self, config: ProfileConfig, engine: Engine, launch: Launch, server: Server, window: Window) -> None:
        self._config, self._engine, self._launch, self._server = config, engine, launch, server
        self.window = window
        self.started = self.stopped = False
        self._start_ns = self._end_ns = 0  # by our own clock
        self._stop_seconds: float | None = None
        ledger = launch.ledger_dir
        self._tail = None if ledger is None else LedgerTail(directory=ledger)

    async def start(self) -> None:
        """Raises EngineFailed where the engine refuses."""
        if self._tail is not None:
            self._tail.poll()
        refusal = await self._server.call(self._engine.start_profile(self._launch), timeout_s=START_TIMEOUT_S)
        if refusal is not None:
            raise EngineFailed(
                f"the engine refused to start its profiler: {_say(refusal)}",
                hint="see engine.log; --no-trace runs without a recording",
            )
        self._start_ns = self._end_ns = time.time_ns()
        self.started = True

    async def full(self) -> None:
        """Return when the window is as long as it may be; with window 'all' never."""
        window = self.window
        if window.kind == "all":
            await asyncio.Event().wait()
        if window.seconds is not None or self.blind:
            await asyncio.sleep(window.seconds if window.seconds is not None else BLIND_WINDOW_S)
            return
        assert window.steps is not None
        while self.steps() < window.steps:
            await asyncio.sleep(POLL_S)

    @property
    def blind(self) -> bool:
        """Whether steps cannot be counted: no ledger, or a hook that failed."""
        return self._tail is None or not self._tail.headers or bool(self._tail.errors)

    def steps(self) -> int:
        """Steps recorded so far, by the ledger."""
        if self._tail is None:
            return 0
        self._tail.poll()
        return self._tail.steps_recorded()

    async def stop(self) -> None:
        """Raises StopTimeout past the deadline, EngineFailed where the engine cannot stop or write."""
        if not self.started or self.stopped:
            return
        self.stopped = True
        self._end_ns = time.time_ns()
        timeout_s = self._config.stop_deadline_s(self.steps() or None)
        began = time.monotonic()
        refusal = await self._server.call(self._engine.stop_profile(), timeout_s=timeout_s)
        self._stop_seconds = round(time.monotonic() - began, 3)
        if refusal is None:
            return
        if refusal.timed_out:
            raise StopTimeout(
                f"stop_profile was not done after {timeout_s:g} s",
                hint="record less with --window steps=N; what was written so far is kept",
            )
        raise EngineFailed(f"stop_profile failed: {_say(refusal)}", hint="see engine.log; is the disk full?")

    async def marked_window(self) -> CaptureWindow | None:
        """The window, once the hook's marks are there; None where nothing was recorded."""
        if not self.started:
            return None
        begin, end = await self._marks() if self._tail is not None else (None, None)
        by_hook = begin is not None and end is not None
        return CaptureWindow(
            start_ns=begin if by_hook and begin is not None else self._start_ns,
            end_ns=end if by_hook and end is not None else self._end_ns,
            marked_by="hook" if by_hook else "client",
            steps=self.steps() or None,
            stop_seconds=self._stop_seconds,
        )

    async def _marks(self) -> tuple[int | None, int | None]:
        assert self._tail is not None
        deadline = time.monotonic() + MARK_WAIT_S
        while True:
            self._tail.poll()
            marks = self._tail.last("profile_start_end"), self._tail.last("profile_stop_begin")
            if marks[1] is not None or not self.stopped or self.blind or time.monotonic() > deadline:
                return marks
            await asyncio.sleep(POLL_S)


def trace_files(directory: Path) -> list[Path]:
    """Finished recordings of workers; one that is being written is called *.json.tmp."""
    return sorted([*directory.glob("*.json"), *directory.glob("*.json.gz")])


async def wait_for_orphan(directory: Path, *, timeout_s: float) -> bool:
    """After an engine died while recording, its orphaned worker may still write: wait until its file rests.

    Returns whether there is a file that has not changed for SETTLED_S seconds.
    """
    deadline = time.monotonic() + timeout_s
    sizes, since = _sizes(directory), time.monotonic()
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        now = _sizes(directory)
        if now != sizes:
            sizes, since = now, time.monotonic()
        elif sizes and time.monotonic() - since >= SETTLED_S:
            return True
    return bool(sizes)


def _sizes(directory: Path) -> dict[Path, int]:
    sizes = {}
    for path in directory.glob("*.json*"):
        with contextlib.suppress(FileNotFoundError):  # renamed in between
            sizes[path] = path.stat().st_size
    return sizes


def _say(refusal: Refusal) -> str:
    if refusal.status is None:
        return refusal.text
    return f"HTTP {refusal.status}" + (f" {refusal.text}" if refusal.text else "")
