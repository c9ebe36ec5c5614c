"""The run directory: its layout, and making it without harming what is there.

manifest.json  plan.jsonl  requests.jsonl  prompts.parquet  model/  engine.log
ledger/*.jsonl  trace/*.pt.trace.json.gz  metrics/<pass>-<before|after>.prom  telemetry/telemetry.jsonl
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profiler.modeldir import check_config
from traces.errors import UsageProblem

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """Paths inside one run directory."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def log(self) -> Path:
        return self.root / "engine.log"

    @property
    def plan(self) -> Path:
        return self.root / "plan.jsonl"

    @property
    def requests(self) -> Path:
        return self.root / "requests.jsonl"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.parquet"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    @property
    def trace(self) -> Path:
        return self.root / "trace"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics"

    @property
    def telemetry(self) -> Path:
        return self.root / "telemetry" / "telemetry.jsonl"


@contextlib.contextmanager
def new_run_dir(out: Path) -> Iterator[RunDir]:
    """Make `out` with its folders; if the block fails, everything made here is removed again.

    Raises UsageProblem where it exists with something in it, or cannot be written.
    """
    root = Path(out).expanduser().absolute()
    existed = root.is_dir()
    if root.exists() and (not existed or any(root.iterdir())):
        raise UsageProblem(f"{out} exists", hint="choose a new directory with --out, or leave --out out")
    parents = [parent for parent in root.parents if not parent.exists()]
    run = RunDir(root=root)
    try:
        for folder in (run.ledger, run.trace, run.metrics):
            folder.mkdir(parents=True, exist_ok=True)
        yield run
    except BaseException as error:
        _remove(root, existed, parents)
        if isinstance(error, OSError):
            raise UsageProblem(f"cannot write to {out}: {error.strerror}", hint="choose another --out") from error
        raise


def _remove(root: Path, existed: bool, parents: list[Path]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    if existed:
        root.mkdir(exist_ok=True)
    for parent in parents:  # nearest first; only those that we made and nobody has used since
        with contextlib.suppress(OSError):
            parent.rmdir()


def check_model_path(name: str) -> tuple[str, bool]:
    """(what the engine gets, whether it is a local folder). Raises UsageProblem where it is no folder and no hub id."""
    path = Path(name).expanduser()
    try:
        there = path.exists()
    except OSError:  # a name no file can have
        there = False
    if not there:
        if HUB_ID.fullmatch(name) and not name.startswith("."):
            return name, False
        raise UsageProblem(
            f"model {name[:200]!r} is neither a preset nor an existing folder nor a hub id",
            hint="presets: see `stepscope profile --help`; a hub id looks like owner/name",
        )
    config = path / "config.json"
    if not config.is_file():
        raise UsageProblem(f"{name} holds no config.json", hint="give the folder of a Hugging Face model")
    try:
        values = json.loads(config.read_text())
        if not isinstance(values, dict):
            raise TypeError("not a JSON object")
    except (OSError, ValueError, TypeError) as error:
        raise UsageProblem(f"{config} cannot be read: {error}", hint="is it the config.json of a model?") from error
    if "text_config" not in values:
        check_config(values, source=str(config), own_tokenizer=False)
    return str(path.absolute()), True


def has_weights(folder: Path) -> bool:
    """Whether a model folder holds weights of a kind that engines load."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf"))
