"""One writer of a database at a time: a lock file beside it, held while a new version of the database is made."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.errors import UsageProblem

WAIT_S = 20.0
_POLL_S = 0.05
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}  # some network file systems


@contextmanager
def sole_writer(target: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of `target`; the file vanishes with it. The system lets go of it when a process dies.

    Raises UsageProblem where another process keeps it for longer than `wait_s`, OSError where no file can be made.
    """
    path = target.with_name(f".{target.name}.lock")
    deadline = time.monotonic() + wait_s
    while (held := _try_to_hold(path)) is None:
        if time.monotonic() >= deadline:
            raise UsageProblem(
                f"{target} is being written by {_holder(path)}: nothing was written",
                hint="run the command again when that is done, or choose another --out",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before the lock is given up: who waits for it sees that it is gone and makes a new one
        os.close(held)


def _try_to_hold(path: Path) -> int | None:
    """Descriptor of the locked file; None where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        if not _is_still(path, descriptor):
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that was opened is the one there now."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _holder(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii", errors="replace")[:20]
    except OSError:
        text = ""
    return f"process {text}" if text.isdigit() else "another process"
