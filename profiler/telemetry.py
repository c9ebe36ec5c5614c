"""Sampling of power, clocks and activity while a run lasts: a process of its own, so that no load client waits for it.

It is started before the engine and stopped after it, and writes `telemetry/telemetry.jsonl` of the run directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from profiler.process import describe_exit
from profiler.sensors.sampler import DEFAULT_HZ, MOST_HZ
from traces.errors import UsageProblem

ROOT = Path(__file__).resolve().parents[1]  # where `profiler` is imported from
STOP_S = 5.0  # the sampler looks for its end between two samples, and takes about a second to begin
LEAST_HZ = 0.1
NO_SENSORS = 3  # exit status of the sampler
_TOLD = ("gone", "reset")  # notices that a person has to know of; what a device never offered is in `sensors`


def parse_hz(text: str) -> float | None:
    """Samples per second: 0 for none, None for as fast as the sensor. Raises UsageProblem."""
    word = text.strip().lower()
    if word in ("off", "none", "0"):
        return 0.0
    if word == "max":
        return None
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if value == 0:
        return 0.0
    if not LEAST_HZ <= value <= MOST_HZ:
        raise UsageProblem(
            f"cannot sample sensors at {text!r}", hint=f"--telemetry-hz takes {LEAST_HZ:g} to {MOST_HZ:g}, max or off"
        )
    return value


class Telemetry:
    """The sampler of one run. `hz` as parse_hz gives it."""

    def __init__(
        self, path: Path, *, device_kind: str, hz: float | None = DEFAULT_HZ, visible: str | None = None
    ) -> None:
        self.path = path
        self._argv = [sys.executable, "-P", "-m", "profiler.sensors.main", str(path)]
        self._argv += ["--source", "nvml" if device_kind == "cuda" else "cpu", "--hz", "max" if hz is None else str(hz)]
        if visible is not None and device_kind == "cuda":
            self._argv += [f"--visible={visible}"]
        self._wanted = hz is None or hz > 0
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: str | None = None

    def start(self) -> None:
        """Begin; what keeps it from doing so is a warning of `stop`, never a failure of the run."""
        if not self._wanted:
            return
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Our end of the pipe closes with us, whatever ends us: then the sampler ends too.
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._problem = f"no telemetry: {error.strerror}"

    def stop(self) -> list[str]:
        """End the sampler, by force where it does not; returns warnings. A second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            problem, self._problem = self._problem, None
            return [problem] if problem else []
        code, said = _end(process)
        if code == 0:
            return [text for record in self._records() if (text := _warning(record))]
        ended = "its process did not end" if code is None else describe_exit(code)
        reason = said or ended
        head = "no telemetry" if code == NO_SENSORS or not self._header() else "telemetry ended early"
        return [f"{head}: {reason[:300]}"]

    def facts(self) -> dict[str, Any]:
        """What was sampled, for the manifest; empty where nothing was."""
        return {key: value for key, value in self._header().items() if key in ("source", "hz", "devices")}

    def _header(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError), self.path.open("rb") as file:
            header = json.loads(file.readline())
            return header if isinstance(header, dict) else {}
        return {}

    def _records(self) -> list[dict[str, Any]]:
        """Notices, the last ones where there are very many."""
        found: deque[dict[str, Any]] = deque(maxlen=1000)
        with contextlib.suppress(OSError, ValueError), self.path.open("rb") as file:
            found.extend(json.loads(line) for line in file if b'"kind":' in line)
        return list(found)


def _end(process: subprocess.Popen[bytes]) -> tuple[int | None, str]:
    """Exit status (None: it could not be ended) and the last line it said."""
    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, said = process.communicate(timeout=STOP_S)
            return process.returncode, said.decode(errors="replace").strip().rpartition("\n")[2]
    return None, ""


def _warning(record: dict[str, Any]) -> str | None:
    if record.get("kind") not in _TOLD:
        return None
    return f"telemetry of device {record.get('device')}: {record.get('text')}"
