"""Makes the raw data of a check: a folder that figures.py reads, here or on another machine.

facts.json          what there is, and how each program ended
calibration.out     `stepscope calibrate --json`
telemetry.jsonl     sensors, all the while
work.jsonl          what torch_work.py did, and loop.pt.trace.json
run/                the same as a run directory, ingested
vllm/               run directory of `stepscope profile`
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.deadline import GRACE_S, Budget, Ended, run
from profiler.interpreter import cpu_name
from profiler.telemetry import Telemetry
from traces.manifest import CaptureWindow, RunManifest

WORK = Path(__file__).with_name("torch_work.py")
CLI = [sys.executable, "-P", "-c", "from cli import main; main()"]
HZ = 10.0
ENGINE_LEAST_S = 75.0  # below, a server would be ended while it loads
_PROBE = """
import importlib.util as u, json
found = {name: u.find_spec(name) is not None for name in ("torch", "vllm", "sglang")}
if found["torch"]:
    import torch
    found["cuda"] = torch.cuda.is_available()
    found["hip"] = bool(getattr(torch.version, "hip", None))
    found["torch_version"] = torch.__version__
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if found["cuda"] else []
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be checked, where."""

    python: Path
    folder: Path
    device: str  # 'auto' | 'cpu'
    engine: bool
    model: str | None
    budget: Budget
    say: Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Facts:
    """facts.json. `reasons`: why a part was not run; `problems`: why one that was run failed."""

    python: str
    created_ns: int
    found: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether torch computed on a GPU."""
        return bool(self.found.get("cuda"))

    def write(self, folder: Path) -> None:
        """Into the folder."""
        names = ("python", "created_ns", "found", "reasons", "problems", "seconds", "warnings")
        values = {name: getattr(self, name) for name in names}
        (folder / "facts.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Raises OSError, ValueError, TypeError where the folder is none of a check."""
        return cls(**json.loads((folder / "facts.json").read_text(encoding="utf-8")))

    def took(self, part: str, ended: Ended) -> bool:
        """Remember how a part ended; True where it is no failure."""
        self.seconds[part] = round(ended.seconds, 1)
        if ended.problem is not None:
            self.problems[part] = ended.problem
        return ended.problem is None


def measure(request: Request) -> Facts:
    """All parts, in order; a part that fails leaves the others alone. Raises ValueError where there is no torch."""
    facts = Facts(python=str(request.python), created_ns=time.time_ns())
    _look(request, facts)
    environment = _environment(request.folder)
    try:
        request.say("calibration")
        _calibrate(request, facts, environment)
        request.say("sensors, load and recorded steps")
        _work(request, facts, environment)
        if _make_run(request.folder, facts):
            request.say("ingest")
            ingest(request.folder, facts, request.budget)
        _engine(request, facts, environment)
    finally:  # also of a check that was interrupted: what is there can be judged
        facts.write(request.folder)
    return facts


def _environment(folder: Path) -> dict[str, str]:
    """What is measured here is kept in the folder, not among the user's calibrations."""
    return {"XDG_STATE_HOME": str(folder / "state")}


def _look(request: Request, facts: Facts) -> None:
    ended = run([str(request.python), "-c", _PROBE], request.folder, "probe", deadline_s=request.budget.grant(90))
    try:
        found = json.loads((request.folder / "probe.out").read_text().strip().rpartition("\n")[2])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{request.python} cannot be used: {ended.problem or 'it answers nonsense'}")
    if "cuda" not in found:
        raise ValueError(f"{request.python} has no torch; name an interpreter that has with --python")
    facts.found = found
    if request.device == "cpu" and found["cuda"]:
        found["cuda"], facts.reasons["gpu"] = False, "--device cpu"
    elif not found["cuda"]:
        facts.reasons["gpu"] = f"torch {found.get('torch_version')} sees no CUDA device"


def _calibrate(request: Request, facts: Facts, environment: dict[str, str]) -> None:
    device = "cuda" if facts.on_gpu else "cpu"
    argv = [*CLI, "calibrate", "--json", "--python", str(request.python), "--device", device]
    argv += [] if facts.on_gpu else ["--short"]
    deadline = request.budget.grant(100)
    facts.took("calibration", run(argv, request.folder, "calibration", deadline_s=deadline, env=environment))


def _work(request: Request, facts: Facts, environment: dict[str, str]) -> None:
    """The torch part, with the sensors sampled from before it begins until it has ended."""
    folder, gpu = request.folder, facts.on_gpu
    nvml = gpu and not facts.found.get("hip")
    telemetry = Telemetry(
        folder / "telemetry.jsonl", device_kind="cuda" if nvml else "cpu", hz=HZ,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )  # fmt: skip
    telemetry.start()
    try:
        _until_sampling(folder / "telemetry.jsonl", request.budget.grant(10))
        work = {
            "out": str(folder), "device": "cuda" if gpu else "cpu", "load_s": 6.0 if gpu else 2.0,
            "rest_s": 3.0 if gpu else 1.0, "decode_steps": 24 if gpu else 12, "sleep_s": 0.06,
        }  # fmt: skip
        argv = [str(request.python), str(WORK), json.dumps(work)]
        env = environment if gpu else {**environment, "CUDA_VISIBLE_DEVICES": ""}
        facts.took("work", run(argv, folder, "work", deadline_s=request.budget.grant(110), env=env))
    finally:
        warnings = telemetry.stop()
    facts.warnings += warnings
    if any(text.startswith(("no telemetry", "telemetry ended")) for text in warnings):
        facts.problems["sensors"] = warnings[0]


def _until_sampling(path: Path, seconds: float) -> None:
    """Until the first line is there; the sampler measures its sensors' period before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (path.exists() and path.stat().st_size):
        time.sleep(0.1)


def sections(folder: Path) -> dict[str, dict[str, Any]]:
    """Lines of work.jsonl by section; a torn last line is left out."""
    found: dict[str, dict[str, Any]] = {}
    try:
        lines = (folder / "work.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            section = json.loads(line)
        except ValueError:
            continue
        if isinstance(section, dict):
            found[str(section.get("section"))] = section
    return found


def _make_run(folder: Path, facts: Facts) -> bool:
    """The recording as a run directory with its calibration and sensors; False where there is no recording."""
    loop, place = sections(folder).get("loop", {}), sections(folder).get("facts", {})
    trace = folder / "loop.pt.trace.json"
    if "start_ns" not in loop or not trace.exists():
        return False
    try:
        calibration = json.loads((folder / "calibration.out").read_text(encoding="utf-8"))
    except ValueError:
        calibration = None
    target = folder / "run"
    (target / "trace").mkdir(parents=True)
    trace.rename(target / "trace" / "rank0.pt.trace.json")
    if (folder / "telemetry.jsonl").exists():
        (target / "telemetry").mkdir()
        shutil.copy(folder / "telemetry.jsonl", target / "telemetry")
    kind = str(place["device_kind"])
    RunManifest(
        run_id="gpu-check", name="gpu-check", status="complete", created_ns=facts.created_ns, stepscope_version="0",
        source="attach", engine="unknown", device_kind=kind, model="a small transformer", dtype=str(place["dtype"]),
        device_name=cpu_name() if kind == "cpu" else place["device_name"], calibration=calibration,
        capture=CaptureWindow(start_ns=loop["start_ns"], end_ns=loop["end_ns"], marked_by="client"),
    ).write(target)  # fmt: skip
    return True


def ingest(folder: Path, facts: Facts, budget: Budget) -> None:
    """run/run.duckdb, made anew."""
    database = folder / "run" / "run.duckdb"
    database.unlink(missing_ok=True)
    argv = [*CLI, "ingest", "--quiet", str(folder / "run"), "--out", str(database)]
    env = _environment(folder)
    facts.took("ingest", run(argv, folder, "ingest", deadline_s=budget.grant(90), env=env))


def _engine(request: Request, facts: Facts, environment: dict[str, str]) -> None:
    """`stepscope profile` of a preset with random weights, for as long as the budget lasts."""
    deadline = request.budget.grant(240) - GRACE_S
    if not request.engine:
        facts.reasons["vllm"] = "--no-engine"
    elif not facts.found.get("vllm"):
        facts.reasons["vllm"] = "vLLM is not installed there"
    elif deadline < ENGINE_LEAST_S:
        facts.reasons["vllm"] = f"{max(0.0, deadline):.0f} s of the budget are left, it needs {ENGINE_LEAST_S:.0f} s"
    else:
        request.say(f"vLLM under `stepscope profile`, at most {deadline:.0f} s")
        argv = [*CLI, "profile", *_profile_options(request, on_gpu=facts.on_gpu)]
        ended = run(argv, request.folder, "vllm", deadline_s=deadline, grace_s=GRACE_S, env=environment)
        facts.took("vllm", ended)
    installed = (
        "it is installed, but `profile` does not start it" if facts.found.get("sglang") else "it is not installed"
    )
    facts.reasons["sglang"] = installed


def _profile_options(request: Request, *, on_gpu: bool) -> list[str]:
    options = ["--python", str(request.python), "--out", str(request.folder / "vllm"), "--json", "--quiet"]
    options += ["--no-control", "--model", request.model or ("llama-3.2-1b" if on_gpu else "tiny")]
    if not on_gpu:
        return [*options, "--device", "cpu", "--workload", "batch:n=4,prompt=32,output=16", "--window", "steps=60"]
    # few sizes of graphs: their capture takes most of a start
    fewer = [part for text in ("max-num-seqs=16", "max-model-len=4096") for part in ("--engine-arg", text)]
    return [*options, *fewer, "--workload", "batch:n=16,prompt=512,output=96,form=ids", "--window", "steps=300"]
