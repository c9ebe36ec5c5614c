"""Standard streams as a command needs them: open, with an encoding that fails on nothing, and given up once they fail."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

# What writing to a stream, which has no file name, fails with: a full disk, a quota, a device that is gone.
_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO}


def open_streams() -> None:
    """A stream that the caller closed (`>&-`) goes nowhere; a character that a stream's encoding lacks becomes '?'."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            if not _is_open(number):  # or the next file opened, a database, would be standard output
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        stream = getattr(sys, name)
        if number > 0 and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def is_failure(error: OSError) -> bool:
    """Whether it is a stream that could not be written; what failed with a file has its name."""
    return error.filename is None and error.errno in _FAILURES


def give_up_stdout() -> None:
    """What is still buffered goes nowhere, and does not fail again when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
