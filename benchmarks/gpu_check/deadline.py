"""Programs that may not hang: each has a deadline, and all of them together a budget."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 20.0  # between SIGTERM, at which `stepscope profile` takes its engine down, and SIGKILL
KILL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended: `code` as the shell counts it, None where it did not end by itself."""

    code: int | None
    seconds: float
    last: str  # line of its standard error

    @property
    def problem(self) -> str | None:
        """Why it is a failure; None where it is none."""
        if self.code == 0:
            return None
        if self.code is None:
            return f"did not end within {self.seconds:.0f} s"
        return f"exit code {self.code}: {self.last}" if self.last else f"exit code {self.code}"


class Budget:
    """Seconds that are left of a whole."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """May be negative."""
        return self._end - time.monotonic()

    def grant(self, wanted_s: float) -> float:
        """Up to `wanted_s`, with what it takes to end a program kept back."""
        return max(0.0, min(wanted_s, self.left_s - KILL_S))


def run(argv: Sequence[str], folder: Path, name: str, *, deadline_s: float, grace_s: float = 2.0,
        env: Mapping[str, str] | None = None) -> Ended:  # fmt: skip
    """Run a program of its own process group; its output goes to `name.out` and `name.err` in `folder`.

    After `deadline_s` it gets SIGTERM, `grace_s` later the group is killed: both are part of the deadline's cost. The
    same where we are interrupted.
    """
    began = time.monotonic()
    errors = folder / f"{name}.err"
    with (folder / f"{name}.out").open("wb") as out, errors.open("wb") as err:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
        except OSError as error:
            return Ended(code=127, seconds=0.0, last=f"{argv[0]}: {error.strerror}")
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=max(0.1, deadline_s))
        finally:
            _end(process, grace_s)
    return Ended(code=code, seconds=time.monotonic() - began, last=_last_line(errors))


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """What is left of the group; it may hold children of a program that has ended."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands: nothing more can be done
        process.wait(timeout=KILL_S)


def _last_line(path: Path) -> str:
    """Of the last 4 KiB."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""
