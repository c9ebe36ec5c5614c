"""The stub of libnvidia-ml.so.1: built once per session of tests, and the truth of what its devices do."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiler.telemetry import Telemetry

SOURCE = Path(__file__).resolve().parent / "stub_nvml" / "nvml.c"
S = 1_000_000_000


def build(folder: Path) -> Path:
    """Compile the stub into `folder`; skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(SOURCE),
        "-lm",
    ]
    subprocess.run(command, check=True)
    return folder


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def library_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))


def sampled(telemetry: Telemetry, until: float) -> list[str]:
    """Run a sampler until its file is `until` seconds old; its warnings."""
    telemetry.start()
    deadline = time.monotonic() + 60
    while not (telemetry.path.exists() and telemetry.path.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(until)
    return telemetry.stop()


def energy_j(at_s: float) -> float:
    """Joules since time began: 200 W in even seconds, 400 W in odd ones."""
    pairs = math.floor(at_s / 2)
    rest = at_s - 2 * pairs
    return pairs * 600 + (rest * 200 if rest < 1 else 200 + (rest - 1) * 400)


def busy_share(from_s: float, to_s: float) -> float:
    """Share of a time that lies in odd seconds."""
    return ((energy_j(to_s) - energy_j(from_s)) / (to_s - from_s) - 200) / 200
