"""What a run needs, checked one by one; every finding that is not fine carries its remedy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from profiler.engines.base import Engine
from profiler.engines.registry import find_engine
from profiler.interpreter import Interpreter, gpu_name, inspect_interpreter
from traces.errors import UsageProblem

NAMES: tuple[str, ...] = ("cli", "profiler", "traces", "analyzers")
DISTRIBUTION = "stepscope"
LOW_DISK_BYTES = 2 << 30
SHARED_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line: status is 'ok', 'warn' (works with limits) or 'fail' (no engine can be started)."""

    name: str
    status: str
    found: str
    remedy: str = ""


def examine(engine_name: str, python: Path | None) -> list[Check]:
    """All checks. Raises UsageProblem for an unknown engine only."""
    engine = find_engine(engine_name)
    checks: list[Check] = []
    try:
        interpreter = inspect_interpreter(python, engine)
    except UsageProblem as problem:
        checks.append(Check(name="python", status="fail", found=problem.message, remedy=problem.hint))
    else:
        found = f"{interpreter.path} ({interpreter.python_version})"
        checks.append(Check(name="python", status="ok", found=found))
        checks += [_engine(interpreter, engine), _torchvision(interpreter), _build(interpreter)]
    return [*checks, _gpu(), _nvml(), _cpu_power(), _disk("disk", Path.cwd(), LOW_DISK_BYTES),
            _disk("shared memory", Path("/dev/shm"), SHARED_MEMORY_BYTES), _names()]  # fmt: skip  # noqa: S108


def render(checks: list[Check], *, as_json: bool) -> str:
    """A line per check, remedies indented below; or a JSON array."""
    if as_json:
        return json.dumps([asdict(check) for check in checks], indent=2)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<5}{check.name:<15}{check.found}")
        if check.remedy:
            lines.append(f"{'':<20}→ {check.remedy}")
    return "\n".join(lines)


def _engine(interpreter: Interpreter, engine: Engine) -> Check:
    if not interpreter.has_engine:
        return Check(name="engine", status="fail", found=f"{engine.name} is not installed", remedy=engine.install_hint)
    version = interpreter.engine_version or "of unknown version"
    return Check(name="engine", status="ok", found=f"{interpreter.distribution or engine.name} {version}")


def _torchvision(interpreter: Interpreter) -> Check:
    """The build for GPUs cannot be loaded beside a torch for CPUs, and the engine imports it."""
    version = interpreter.torchvision_version
    if version is None:
        return Check(name="torchvision", status="ok", found="not installed (text models need none)")
    if (interpreter.torch_version or "").endswith("+cpu") and not version.endswith("+cpu"):
        return Check(
            name="torchvision", status="fail",
            found=f"{version} does not fit torch {interpreter.torch_version}: the engine will not start",
            remedy=f"{interpreter.path} -m pip uninstall -y torchvision torchaudio torchcodec",
        )  # fmt: skip
    return Check(name="torchvision", status="ok", found=version)


def _build(interpreter: Interpreter) -> Check:
    if interpreter.torch_version is None:
        return Check(name="torch", status="warn", found="not installed", remedy="the engine brings the one it needs")
    if interpreter.cpu_only and gpu_name() is not None:
        return Check(
            name="torch", status="warn", found=f"{interpreter.torch_version}: a CPU build on a machine with a GPU",
            remedy="use an environment with the CUDA build: --python PATH",
        )  # fmt: skip
    return Check(name="torch", status="ok", found=interpreter.torch_version)


def _gpu() -> Check:
    name = gpu_name()
    if name is None:
        return Check(name="gpu", status="warn", found="none answers", remedy="runs use the CPU; else check nvidia-smi")
    return Check(name="gpu", status="ok", found=name)


def _nvml() -> Check:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check(
            name="nvml", status="warn", found=str(error), remedy="no power or clocks without it: install the driver"
        )
    return Check(name="nvml", status="ok", found=f"driver {version}, {count} devices")


def _cpu_power() -> Check:
    """Runs on a CPU have power only where RAPL can be read."""
    from profiler.sensors.host import HostSource
    from profiler.sensors.source import SensorProblem

    source = HostSource()
    try:
        source.prepare()
    except SensorProblem as problem:
        return Check(name="cpu power", status="warn", found=str(problem), remedy="telemetry of a CPU run needs it")
    if not source.zones:
        return Check(
            name="cpu power", status="warn", found="RAPL cannot be read: CPU runs have no power",
            remedy="run as root, or let everyone read /sys/class/powercap/intel-rapl:*/energy_uj; virtual machines have none",
        )  # fmt: skip
    return Check(name="cpu power", status="ok", found=f"RAPL: {', '.join(source.zones)}")


def _disk(name: str, path: Path, low_bytes: int) -> Check:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(name=name, status="warn", found=f"{path}: {error.strerror}", remedy="engines need it")
    found = f"{free / 2**30:.1f} GiB free in {path}"
    if free < low_bytes:
        return Check(name=name, status="warn", found=found, remedy="free some space: recordings and engines need it")
    return Check(name=name, status="ok", found=found)


def _names() -> Check:
    """The import names are generic: another package may have brought its own `traces`."""
    home = Path(__file__).resolve().parents[1]
    owners = importlib.metadata.packages_distributions()
    strangers = [
        f"{name} ({', '.join(others)})"
        for name in NAMES
        if (others := sorted({owner for owner in owners.get(name, []) if owner != DISTRIBUTION}))
    ]
    elsewhere = [name for name in NAMES if not _lives_in(name, home)]
    if not strangers and not elsewhere:
        return Check(name="import names", status="ok", found=", ".join(NAMES))
    return Check(
        name="import names", status="fail",
        found=f"not ours alone: {', '.join([*strangers, *elsewhere])}",
        remedy="install stepscope into an environment of its own, and run it outside folders with such names",
    )  # fmt: skip


def _lives_in(name: str, home: Path) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve().is_relative_to(home)
