"""The engine's processes: start as a group of their own, wait until ready, stop, and leave nobody behind.

Whoever belongs to a run carries STEPSCOPE_RUN_ID in its environment, so that descendants are found even after they
left the process group. Temporary files of the engine go into a folder of ours, removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from traces.errors import EngineFailed, UsageProblem

RUN_ID_VARIABLE = "STEPSCOPE_RUN_ID"
LOG_TAIL_LINES = 30
INTERRUPT_GRACE_S = 6.0
TERMINATE_GRACE_S = 3.0
KILL_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(host: str, port: int) -> None:
    """Raise UsageProblem where `port` is taken or not allowed."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageProblem(
            f"port {port} cannot be used: {reason}", hint="leave --port out, and a free one is taken"
        ) from error


class EngineProcess:
    """One server and whatever it starts."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, run_id: str, log_path: Path) -> None:
        """`env` is added to this process's environment; output of all processes goes to `log_path`."""
        self.argv = list(argv)
        self.run_id = run_id
        self.log_path = log_path
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None

    def start(self) -> None:
        """Nothing where it has been started. Raises EngineFailed where the command cannot be executed."""
        if self._process is not None:
            return
        self._scratch = Path(tempfile.mkdtemp(prefix="stepscope-"))  # short: sockets live in it, 107 characters at most
        env = {**os.environ, **self._env, RUN_ID_VARIABLE: self.run_id, "TMPDIR": str(self._scratch)}
        with self.log_path.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self.argv, env=env, cwd=self.log_path.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - before any thread of ours
                )  # fmt: skip
            except OSError as error:
                raise EngineFailed(
                    f"cannot start {self.argv[0]}: {error.strerror}", hint="is it executable?"
                ) from error

    @property
    def pid(self) -> int | None:
        """Of the server; also the id of its session and group."""
        return None if self._process is None else self._process.pid

    def exit_code(self) -> int | None:
        """None while the server runs (or was never started)."""
        return None if self._process is None else self._process.poll()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log, at most 64 KiB of it."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - 65_536))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    async def wait_ready(
        self, probe: Callable[[], Awaitable[bool]], *, timeout_s: float, progress: Callable[[str], None]
    ) -> None:
        """Poll `probe` until it is true. Raises EngineFailed when the server exits or `timeout_s` is over."""
        deadline = time.monotonic() + timeout_s
        while not await probe():
            code = self.exit_code()
            if code is not None:
                raise EngineFailed(f"the engine ended before it was ready ({describe_exit(code)})")
            if time.monotonic() > deadline:
                raise EngineFailed(f"the engine was not ready after {timeout_s:g} s")
            progress(_last_line(self.log_tail(1)))
            await asyncio.sleep(0.2)

    def members(self) -> list[int]:
        """Living processes of this run: of its session, or marked with its run id."""
        if self._process is None:
            return []
        marker = f"{RUN_ID_VARIABLE}={self.run_id}".encode()
        return [pid for pid in _processes() if _session(pid) == self._process.pid or marker in _environment(pid)]

    def stop(self) -> list[int]:
        """Interrupt, terminate, kill: first the group, then every member left. Returns who survived all of it."""
        if self._process is None:
            self._remove_scratch()
            return []
        steps = (
            (signal.SIGINT, INTERRUPT_GRACE_S), (signal.SIGTERM, TERMINATE_GRACE_S), (signal.SIGKILL, KILL_GRACE_S),
        )  # fmt: skip
        for number, grace_s in steps:
            if self._gone_within(0.0):
                break
            self._signal(number)
            if self._gone_within(grace_s):
                break
        self._remove_scratch()
        return self.members()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        for pid in self.members() if number != signal.SIGINT else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.exit_code()  # reaps the server
            if not self.members():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def describe_exit(code: int) -> str:
    """'exit code 1' or 'signal SIGKILL'."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _die_with(parent: int) -> Callable[[], None]:
    def arrange() -> None:
        # Should stepscope be killed outright, the server gets a SIGTERM and takes its own children along.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _session(pid: int) -> int | None:
    """Session id; None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rfind(")") + 2 :].split()  # the name before may hold anything
    return None if fields[0] in "ZX" else int(fields[3])


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:120]
