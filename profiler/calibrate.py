"""`stepscope calibrate`: measured peaks of this machine, in the engine's interpreter and with its number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiler.interpreter import cpu_name
from traces.calibration import (
    AUTO_BIND,
    NO_BIND,
    Calibration,
    MatrixRate,
    MemoryRate,
    bound_cpus,
    matching,
    read_calibrations,
)  # fmt: skip
from traces.errors import EngineFailed, UsageProblem

PROBE = Path(__file__).parent / "probes" / "calibrate_probe.py"
_GPU_DTYPES = ("bf16", "fp16", "fp32", "fp8", "int8")
DTYPES: dict[str, tuple[str, ...]] = {"cpu": ("bf16", "fp32", "int8", "fp16"), "cuda": _GPU_DTYPES}
SHORT_DTYPES: dict[str, tuple[str, ...]] = {"cpu": ("bf16", "fp32"), "cuda": _GPU_DTYPES}
SHORT_S, FULL_S = 6.5, 45.0
TIMEOUT_S = 240.0
# CPUs that others may use while the machine still counts as idle.
QUIET_CPUS, QUIET_SHARE = 0.2, 0.02
SPREAD_LIMIT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateConfig:
    """What to measure, and for how long. `bind` as VLLM_CPU_OMP_THREADS_BIND: 'auto', or CPUs such as '0-1'."""

    python: Path = Path(sys.executable)
    device: str = "auto"  # 'auto' (a GPU that torch can use, else the CPU) | 'cpu' | 'cuda'
    bind: str = AUTO_BIND
    short: bool = False
    seconds: float | None = None  # default: SHORT_S or FULL_S, the import of torch included


def known_or_measured(python: Path, bind: str) -> Calibration:
    """A full measurement of this CPU made earlier, else a short one made now. Raises as `measure` does."""
    known = matching(read_calibrations(), device_name=cpu_name(), bind=bind)
    if known is not None and not known.short and known.quiet:
        return known
    return measure(CalibrateConfig(python=python, device="cpu", bind=bind, short=True))


def measure(config: CalibrateConfig) -> Calibration:
    """Run the probe and return what it saw.

    Raises UsageProblem for a binding or interpreter that cannot be used, EngineFailed where the probe dies or hangs.
    """
    cpus = compute_cpus(config.bind)
    seconds = config.seconds or (SHORT_S if config.short else FULL_S)
    request = {
        "device": config.device, "threads": len(cpus), "short": config.short,
        "dtypes": SHORT_DTYPES if config.short else DTYPES, "until": time.time() + seconds,
    }  # fmt: skip
    python = config.python.expanduser().absolute()  # not resolved: an environment is told by the path of its link
    raw = _decoded(_run([str(python), str(PROBE), json.dumps(request)], _environment(cpus)), python)
    found = Calibration(
        created_ns=time.time_ns(), device_kind=raw["device_kind"], device_name=raw["device_name"],
        threads=raw["threads"], bind=config.bind if raw["device_kind"] == "cpu" else None,
        torch_version=raw["torch_version"], short=config.short,
        matrix=tuple(MatrixRate(**row) for row in raw["matrix"]),
        memory=tuple(MemoryRate(**row) for row in raw["memory"]), launch_ns=raw["launch_ns"],
        others_cpu=raw["others_cpu"], quiet=_quiet(raw["others_cpu"]),
    )  # fmt: skip
    return replace(found, warnings=tuple(_warnings(found)))


def compute_cpus(bind: str = AUTO_BIND) -> tuple[int, ...]:
    """The CPUs on which vLLM's CPU engine computes under this binding.

    'auto' takes one hardware thread per core of the first memory node, and leaves one core to the scheduler; on a
    machine of two cores that is one thread. Raises UsageProblem for a list with CPUs that this process may not use.
    """
    allowed = os.sched_getaffinity(0)
    if bind.partition(":")[0] == NO_BIND:  # the threads go where the system puts them: on as many CPUs as there are
        threads = bind.partition(":")[2]
        return tuple(sorted(allowed)[: int(threads) if threads.isdecimal() and int(threads) else None])
    if bind != AUTO_BIND:
        cpus = bound_cpus(bind)
        if not cpus or not set(cpus) <= allowed:
            listed = ",".join(map(str, sorted(allowed)))
            raise UsageProblem(f"cannot bind to {bind}", hint=f"'auto', 'nobind', or a list of these CPUs: {listed}")
        return cpus
    cores: dict[tuple[str, str], int] = {}
    for cpu in sorted(allowed & (_first_node() or allowed)):
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        cores[_text(folder / "physical_package_id"), _text(folder / "core_id") or str(cpu)] = cpu
    usable = sorted(cores.values())
    return tuple(usable[:-1] or usable)


def report(found: Calibration) -> list[str]:
    """The measurement for a terminal."""
    bound = f"{found.threads} thread{'s' if found.threads != 1 else ''} ({found.bind}), " if found.threads else ""
    lines = [f"{found.device_name or found.device_kind}: {bound}torch {found.torch_version}", ""]
    lines += ["  product          m × k × n              best      median  spread"]
    for rate in found.matrix:
        size = f"{rate.m} × {rate.k} × {rate.n}"
        best, median = rate.best / 1e12, rate.median / 1e12
        lines.append(f"  {rate.dtype:<8}{size:>26}{best:>9.3f}{median:>9.3f} TFLOP/s{100 * rate.spread:>5.0f} %")
    lines += ["", "  memory        working set      best      median  spread"]
    for item in found.memory:
        size = f"{item.working_set_bytes / (1 << 20):g} MiB"
        best, median = item.best / 1e9, item.median / 1e9
        lines.append(f"  {item.operation:<8}{size:>17}{best:>10.1f}{median:>9.1f} GB/s{100 * item.spread:>6.0f} %")
    if found.launch_ns is not None:
        lines += ["", f"  smallest piece of work {found.launch_ns / 1e3:.1f} µs"]
    if found.others_cpu is not None:
        lines.append(f"  other processes used {found.others_cpu:.2f} CPUs meanwhile")
    return lines


def _warnings(found: Calibration) -> list[str]:
    warnings = []
    if not found.quiet:
        warnings.append(f"the machine was not idle: others used {found.others_cpu:.2f} CPUs, peaks may be too low")
    if not found.matrix:
        warnings.append("no element type could be multiplied")
    unsteady = [rate.dtype for rate in found.matrix if rate.best > (1 + SPREAD_LIMIT) * rate.median]
    if unsteady:
        warnings.append(f"products in {', '.join(dict.fromkeys(unsteady))} varied by more than half")
    return warnings


def _quiet(others_cpu: float | None) -> bool:
    return others_cpu is not None and others_cpu <= max(QUIET_CPUS, QUIET_SHARE * (os.cpu_count() or 1))


def _environment(cpus: tuple[int, ...]) -> dict[str, str]:
    """This process's, with the threads placed as vLLM's CPU engine places them."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "KMP_", "GOMP_", "MKL_"))}
    places = "{" + ",".join(map(str, cpus)) + "}"
    return {**kept, "OMP_NUM_THREADS": str(len(cpus)), "OMP_PLACES": places, "OMP_PROC_BIND": "true"}


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/", check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailed(f"no measurement within {TIMEOUT_S:g} s", hint="is the machine busy?") from error
    except OSError as error:
        raise UsageProblem(
            f"{command[0]} cannot be run: {error.strerror}", hint="--python takes the engine's interpreter"
        ) from error


def _decoded(answer: subprocess.CompletedProcess[str], python: Path) -> dict[str, Any]:
    if answer.returncode == 0:
        try:
            raw = json.loads(answer.stdout.strip().rpartition("\n")[2])
        except json.JSONDecodeError:
            raw = None
        if isinstance(raw, dict):
            return raw
    last = answer.stderr.strip().rpartition("\n")[2] or f"exit code {answer.returncode}"
    if "No module named 'torch'" in answer.stderr:
        raise UsageProblem(f"{python} has no torch", hint="name the engine's interpreter with --python")
    raise EngineFailed(f"the measurement failed: {last}", hint=f"try: {python} {PROBE}")


def _first_node() -> set[int] | None:
    """CPUs of the first memory node; None where the system does not say."""
    return set(bound_cpus(_text(Path("/sys/devices/system/node/node0/cpulist"))) or ()) or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
