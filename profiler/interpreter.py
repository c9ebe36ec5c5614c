"""The engine's interpreter: does it run, does it hold the engine, in which versions. Nothing is imported there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from profiler.engines.base import Engine
from traces.errors import UsageProblem

_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(*names):
    for name in names:
        try:
            return [name, m.version(name)]
        except m.PackageNotFoundError:
            pass
module, names = sys.argv[1], sys.argv[2:]
print(json.dumps({
    "python": sys.version.split()[0], "prefix": sys.prefix, "found": u.find_spec(module) is not None,
    "engine": version(*names), "torch": version("torch"), "torchvision": version("torchvision"),
    "transformers": version("transformers"),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What the engine's interpreter holds; versions are None where unknown."""

    path: Path
    python_version: str
    has_engine: bool
    distribution: str | None
    engine_version: str | None
    torch_version: str | None
    torchvision_version: str | None
    transformers_version: str | None

    @property
    def cpu_only(self) -> bool:
        """Whether its torch or engine is a build for CPUs."""
        return (self.distribution or "").endswith("-cpu") or (self.torch_version or "").endswith("+cpu")

    def versions(self) -> dict[str, str]:
        """Known versions by package name."""
        pairs = {
            "python": self.python_version, self.distribution or "engine": self.engine_version,
            "torch": self.torch_version, "transformers": self.transformers_version,
        }  # fmt: skip
        return {name: version for name, version in pairs.items() if version is not None}


def inspect_interpreter(python: Path | None, engine: Engine, *, timeout_s: float = 60.0) -> Interpreter:
    """Ask `python` (default: this one) what it holds. Raises UsageProblem where it is none or does not answer."""
    path = Path(sys.executable) if python is None else _located(python)
    command = [str(path), "-c", _PROBE, engine.module, *engine.distributions]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd="/", check=False)
    except subprocess.TimeoutExpired as error:
        raise UsageProblem(f"{path} did not answer within {timeout_s:g} s", hint="is it a Python?") from error
    except OSError as error:
        raise UsageProblem(f"{path} cannot be run: {error.strerror}", hint="give the path of a Python") from error
    try:
        found = json.loads(answer.stdout.strip().rpartition("\n")[2])
        name, version = found["engine"] or (None, None)
        return Interpreter(
            path=path, python_version=found["python"], has_engine=found["found"], distribution=name,
            engine_version=version, torch_version=(found["torch"] or [None, None])[1],
            torchvision_version=(found["torchvision"] or [None, None])[1],
            transformers_version=(found["transformers"] or [None, None])[1],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        last = answer.stderr.strip().rpartition("\n")[2] or f"exit code {answer.returncode}"
        raise UsageProblem(f"{path} does not behave like a Python: {last}", hint="give the path of a Python") from error


def require_engine(interpreter: Interpreter, engine: Engine) -> None:
    """Raise UsageProblem where the interpreter has no such engine."""
    if not interpreter.has_engine:
        raise UsageProblem(
            f"{engine.name} is not installed for {interpreter.path}",
            hint=f"{engine.install_hint}; or name another environment with --python PATH",
        )


def device_kind(wanted: str, interpreter: Interpreter) -> str:
    """'cpu' or 'cuda' for --device. Raises UsageProblem where cuda is asked for and cannot be had."""
    if wanted == "cpu":
        return "cpu"
    usable = gpu_name() is not None
    if wanted == "cuda" and interpreter.cpu_only:
        raise UsageProblem(
            f"the engine of {interpreter.path} is a CPU build", hint="install the CUDA build, or use --device cpu"
        )
    if wanted == "cuda" and not usable:
        raise UsageProblem("no NVIDIA GPU answers", hint="check nvidia-smi, or use --device cpu")
    return "cuda" if usable and not interpreter.cpu_only else "cpu"


def gpu_name() -> str | None:
    """Name of the first GPU that nvidia-smi lists, None without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    name = answer.stdout.strip().partition("\n")[0].strip()
    return name if answer.returncode == 0 and name else None


def cpu_name() -> str | None:
    """The processor as /proc/cpuinfo names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def _located(python: Path) -> Path:
    """Absolute, but not resolved: a virtual environment is told by the path of its link."""
    path = Path(os.path.abspath(python.expanduser()))  # noqa: PTH100 - resolve() would leave the environment
    if not path.exists():
        raise UsageProblem(
            f"{python} does not exist", hint="--python takes the interpreter of the engine's environment"
        )
    if path.is_dir():
        candidate = path / "bin" / "python"
        hint = f"did you mean {candidate}?" if candidate.exists() else "give the interpreter, not a folder"
        raise UsageProblem(f"{python} is a directory", hint=hint)
    return path
