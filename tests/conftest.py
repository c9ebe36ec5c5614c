"""Fixtures that several test modules share."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import cli
from cli import Composition
from traces.ingest import IngestOptions, ingest_once

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def sample_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Ingests and analyzes sample files (names below the data folder) once for all workers; skips where they are absent."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "samples"
    folder.mkdir(exist_ok=True)

    def database(*names: str) -> Path:
        paths = [str(DATA / name) for name in names]
        missing = [path for path in paths if not Path(path).exists()]
        if missing:
            pytest.skip(f"sample recordings are not here: {', '.join(missing)}")
        target = folder / f"{hashlib.sha256(repr(names).encode()).hexdigest()[:12]}.duckdb"
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():  # it appears when it is finished
                ingest_once(paths, target, IngestOptions(finish=Composition().analysis()))
        return target

    return database


@pytest.fixture(scope="session")
def llama_run(tmp_path_factory: pytest.TempPathFactory) -> object:
    """One engine_llama.EngineRun of `llama-160m` for all tests that look at it."""
    from engine_llama import llama_run

    return llama_run(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(item) for item in arguments])
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return int(stopped.value.code or 0), found.out, found.err

    return invoke
