"""What a machine was measured to reach: `calibration/<machine>.json` in the user's state folder, and how it is found.

`stepscope calibrate` writes it, analyses read it. It sits at the bottom because neither side may import the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

CALIBRATION_VERSION = 1
AUTO_BIND, NO_BIND = "auto", "nobind"
MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRate:
    """Products of [m,k] and [k,n]. Rates in FLOP/s; spread = (slowest − fastest) / median of the repeats."""

    dtype: str  # 'bf16' | 'fp16' | 'fp32' | 'int8' | 'fp8'
    m: int
    k: int
    n: int
    best: float
    median: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """Reading or copying a working set again and again. Rates in bytes/s moved: a copy counts both ways."""

    operation: str  # 'read' (one stream) | 'dot' (two) | 'copy'
    working_set_bytes: int
    best: float
    median: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One device with one number of compute threads."""

    version: int = CALIBRATION_VERSION
    created_ns: int
    device_kind: str  # 'cpu' | 'cuda' | 'hip'
    device_name: str | None
    threads: int | None  # compute threads of a CPU; None on a GPU
    bind: str | None  # as VLLM_CPU_OMP_THREADS_BIND: 'auto' or a list such as '0-1'; None on a GPU
    torch_version: str | None
    short: bool
    matrix: tuple[MatrixRate, ...]
    memory: tuple[MemoryRate, ...]
    launch_ns: float | None  # ns of the smallest piece of work, dispatch included
    others_cpu: float | None  # CPUs that other processes used meanwhile, on average
    quiet: bool  # the machine was otherwise idle
    warnings: tuple[str, ...] = ()

    def peak_flops(self, dtype: str) -> float | None:
        """FLOP/s of the fastest product in `dtype`; None where it was not measured."""
        return max((rate.best for rate in self.matrix if rate.dtype == dtype), default=None)

    @property
    def peak_bandwidth(self) -> float | None:
        """Bytes/s of the device's memory: the fastest of the largest working sets."""
        largest = max((rate.working_set_bytes for rate in self.memory), default=0)
        return max((rate.best for rate in self.memory if rate.working_set_bytes == largest), default=None)

    def bandwidth_for(self, working_set_bytes: float) -> float | None:
        """Bytes/s for data of this size, caches included: of the largest measured set that is not larger, else of the
        smallest. What a kernel moves again and again may come from a cache, faster than the memory's rate."""
        sizes = sorted({rate.working_set_bytes for rate in self.memory})
        if not sizes:
            return None
        size = max((item for item in sizes if item <= working_set_bytes), default=sizes[0])
        return max(rate.best for rate in self.memory if rate.working_set_bytes >= size)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Calibration:
        """From decoded JSON; unknown keys are ignored. Raises KeyError, TypeError or ValueError for anything else."""
        values = _known(cls, raw)
        values["matrix"] = tuple(MatrixRate(**_known(MatrixRate, item)) for item in raw["matrix"])
        values["memory"] = tuple(MemoryRate(**_known(MemoryRate, item)) for item in raw["memory"])
        values["warnings"] = tuple(raw.get("warnings", ()))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def state_folder() -> Path:
    """`$XDG_STATE_HOME/stepscope`, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "stepscope"


def machine_id() -> str:
    """An id of this machine that reveals nothing about it: its own id, processor and memory, hashed."""
    parts = [str(os.cpu_count()), _first_line(Path("/etc/machine-id"))]
    parts += [_value(Path("/proc/cpuinfo"), "model name"), _value(Path("/proc/meminfo"), "MemTotal")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def calibration_path() -> Path:
    """Where this machine's measurements are kept."""
    return state_folder() / "calibration" / f"{machine_id()}.json"


def read_calibrations(path: Path | None = None) -> tuple[Calibration, ...]:
    """All measurements of this machine, newest first; none where the file is absent or not readable as one."""
    try:
        raw = json.loads((path or calibration_path()).read_text(encoding="utf-8"))
        found = [Calibration.from_dict(item) for item in raw["entries"] if item["version"] == CALIBRATION_VERSION]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()  # a measurement can be repeated at any time
    return tuple(sorted(found, key=lambda item: -item.created_ns))


def store_calibration(new: Calibration, path: Path | None = None) -> Path:
    """Add `new`, replacing what was measured for the same device and binding. A short one never replaces a full one."""
    target = path or calibration_path()
    kept = [item for item in read_calibrations(target) if not _same(item, new) or (new.short and not item.short)]
    entries = [item.to_dict() for item in sorted([new, *kept], key=lambda item: -item.created_ns)]
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.part-{os.getpid()}")
    scratch.write_text(json.dumps({"version": CALIBRATION_VERSION, "entries": entries}, indent=2) + "\n")
    scratch.replace(target)
    return target


def matching(
    entries: tuple[Calibration, ...], *, device_name: str | None, bind: str | None = None
) -> Calibration | None:
    """The measurement of this device under this binding: full before short, quiet before disturbed, newest first."""
    fitting = [item for item in entries if device_name and item.device_name == device_name and _bound(item, bind)]
    return min(fitting, key=lambda item: (item.short, not item.quiet, -item.created_ns), default=None)


def binding_of(environment: Mapping[str, object]) -> str:
    """How a CPU engine with these variables places its threads: a list of CPUs, 'auto', or 'nobind:N' for N threads that are
    not bound ('nobind' where their number is left to torch)."""
    bind = str(environment.get("VLLM_CPU_OMP_THREADS_BIND") or AUTO_BIND)
    threads = str(environment.get("OMP_NUM_THREADS") or "")
    return (
        f"{NO_BIND}:{int(threads)}"
        if bind == NO_BIND and threads.isdecimal() and 0 < int(threads) < MOST_CPUS
        else bind
    )


def bound_cpus(bind: str) -> tuple[int, ...] | None:
    """CPUs of a list such as '0-1' or '0,2-3' (the first rank's, up to '|'); None for 'auto' and what is no list."""
    found: list[int] = []
    for part in bind.partition("|")[0].split(","):
        low, dash, high = part.strip().partition("-")
        high = high if dash else low
        if not low.isdecimal() or not high.isdecimal() or int(high) >= MOST_CPUS:
            return None
        found.extend(range(int(low), int(high) + 1))
    return tuple(dict.fromkeys(found))


def _bound(item: Calibration, bind: str | None) -> bool:
    """Same binding. Lists agree where they hold as many CPUs; a GPU has none."""
    if item.device_kind != "cpu":
        return bind is None
    wanted = bind or AUTO_BIND
    cpus = bound_cpus(wanted)
    return item.bind == wanted or (cpus is not None and item.bind != AUTO_BIND and item.threads == len(cpus))


def _same(one: Calibration, other: Calibration) -> bool:
    return (one.device_kind, one.device_name, one.bind, one.threads) == (
        other.device_kind, other.device_name, other.bind, other.threads,
    )  # fmt: skip


def _known(kind: type[Any], raw: dict[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def _value(path: Path, key: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
