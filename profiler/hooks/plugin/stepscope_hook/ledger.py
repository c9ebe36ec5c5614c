"""The ledger file of one engine process: hot path appends to a deque, a thread turns it into JSON lines.

One line per record, each with a "kind"; times are ns (wall clock unless named mono). A killed process loses what the
thread had not written yet, at most INTERVAL_S; a torn last line is the reader's business.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

INTERVAL_S = 0.1
MAX_PENDING = 200_000  # records; beyond it new ones are counted, not kept: the engine's memory is not ours
MAX_ERRORS = 5  # written per place

Record = dict[str, Any]
Render = Callable[[Any], Record]


class _Ledger:
    """State of this process. `pending` holds (render, payload); rendering happens in the writer thread."""

    def __init__(self) -> None:
        self.pending: deque[tuple[Render, Any]] = deque()
        self.dropped = 0
        self.errors: dict[str, int] = {}
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()  # one drain at a time: the thread, or the end of the process
        self.path = Path(os.environ["STEPSCOPE_LEDGER_DIR"]) / f"{os.getpid()}.jsonl"
        self.torn = False


class _Process:
    """Where this process's ledger is found; a forked child starts without one."""

    ledger: _Ledger | None = None


_FAIL = os.environ.get("STEPSCOPE_HOOK_FAIL", "")


def fail_if_asked(where: str) -> None:
    """The test's switch: STEPSCOPE_HOOK_FAIL=<where> makes the hook fail there."""
    if where == _FAIL:
        raise RuntimeError(f"made to fail at {where}")


def put(render: Render, payload: Any) -> None:
    """Queue a record. Cheap: nothing is formatted here."""
    state = _current()
    if state.thread is None:
        _start(state)
    if len(state.pending) >= MAX_PENDING:
        state.dropped += 1
        return
    state.pending.append((render, payload))


def mark(kind: str, *, value: int | None = None, text: str | None = None) -> None:
    """Queue a mark with the time of now."""
    put(_render_mark, (kind, time.time_ns(), value, text))


def error(where: str, failure: BaseException) -> None:
    """Record that the hook failed at `where`; the first MAX_ERRORS per place are written. Never raises."""
    try:
        state = _current()
        count = state.errors[where] = state.errors.get(where, 0) + 1
        if count <= MAX_ERRORS:
            mark("error", value=count, text=f"{where}: {type(failure).__name__}: {failure}"[:500])
    except Exception:
        pass


def flush() -> None:
    """Write everything queued so far."""
    state = _Process.ledger
    if state is None:
        return
    try:
        with state.lock:
            _drain(state)
    except Exception:
        pass


def _current() -> _Ledger:
    if _Process.ledger is None:
        _Process.ledger = _Ledger()
    return _Process.ledger


def _render_mark(payload: tuple[str, int, int | None, str | None]) -> Record:
    kind, ts, value, text = payload
    return {"kind": "mark", "mark": kind, "ts": ts, "value": value, "text": text}


def _start(state: _Ledger) -> None:
    state.thread = threading.Thread(target=_write_forever, args=(state,), name="stepscope-ledger", daemon=True)
    state.thread.start()
    atexit.register(flush)
    # A forked engine core leaves through os._exit, which skips atexit but runs these.
    from multiprocessing import util

    util.Finalize(None, flush, exitpriority=100)


def _write_forever(state: _Ledger) -> None:
    while True:
        time.sleep(INTERVAL_S)
        if state.pending:
            flush()


def _drain(state: _Ledger) -> None:
    lines: list[str] = []
    pending = state.pending
    while pending:
        render, payload = pending.popleft()
        try:
            record = render(payload)
            lines.append(json.dumps(record, separators=(",", ":")))
        except Exception as failure:
            error("render", failure)
    if state.dropped:
        dropped, state.dropped = state.dropped, 0
        record = _render_mark(("error", time.time_ns(), dropped, f"{dropped} records dropped: the writer fell behind"))
        lines.append(json.dumps(record, separators=(",", ":")))
    if not lines:
        return
    # After a failed write the file may end inside a line: start a new one, so that only that line is lost.
    text = ("\n" if state.torn else "") + "\n".join(lines) + "\n"
    state.torn = True
    with state.path.open("a", encoding="utf-8") as file:
        file.write(text)
    state.torn = False


def _forget() -> None:
    _Process.ledger = None


os.register_at_fork(after_in_child=_forget)
