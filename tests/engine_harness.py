"""Running `stepscope profile` against the stub engine or the real one, and looking for processes left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STUB = Path(__file__).resolve().parent / "stub_engine"
COMMAND = [sys.executable, "-c", "from cli import main; main()"]
# the CPU is not measured first: no number of these runs is looked at
SMALL = ["--workload", "batch:n=3,prompt=32,output=4", "--model", "tiny", "--no-calibrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def manifest(self) -> dict[str, object]:
        value: dict[str, object] = json.loads((self.run_dir / "manifest.json").read_text())
        return value


def stub_python(directory: Path) -> Path:
    """An interpreter in which `vllm` is the stub."""
    script = directory / "stub-python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{STUB}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return script


def start(arguments: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, **(env or {})}, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], run_dir: Path, timeout_s: float = 240) -> Ended:
    out, err = process.communicate(timeout=timeout_s)
    return Ended(code=process.returncode, out=out, err=err, run_dir=run_dir)


def profile_stub(tmp_path: Path, *extra: str, fault: str = "") -> Ended:
    run_dir = tmp_path / "run"
    arguments = ["profile", *SMALL, "--python", str(stub_python(tmp_path)), "--out", str(run_dir), *extra]
    return finish(start(arguments, {"STUB_FAULT": fault}), run_dir)


def profile_real(run_dir: Path, *extra: str, env: dict[str, str] | None = None) -> Ended:
    """A run on the engine of this interpreter."""
    return finish(start(["profile", "--model", "tiny", "--out", str(run_dir), *extra], env), run_dir, timeout_s=400)


def left_behind(run_dir: Path) -> list[int]:
    """Processes that mention the run directory in their command line or environment."""
    needle = str(run_dir).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in text:
            found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)
