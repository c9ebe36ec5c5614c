"""Fixtures that several test modules share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli import Composition
from traces.ingest import IngestOptions, ingest_once

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def sample_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Ingests and analyzes sample files (names below the data folder) once per session; skips where they are absent."""
    folder = tmp_path_factory.mktemp("samples")
    made: dict[tuple[str, ...], Path] = {}

    def database(*names: str) -> Path:
        paths = [str(DATA / name) for name in names]
        missing = [path for path in paths if not Path(path).exists()]
        if missing:
            pytest.skip(f"sample recordings are not here: {', '.join(missing)}")
        if names not in made:
            target = folder / f"sample{len(made)}.duckdb"
            ingest_once(paths, target, IngestOptions(finish=Composition().analysis()))
            made[names] = target
        return made[names]

    return database


@pytest.fixture(scope="session")
def llama_run(tmp_path_factory: pytest.TempPathFactory) -> object:
    """One engine_llama.EngineRun of `llama-160m` for all tests that look at it."""
    from engine_llama import llama_run

    return llama_run(tmp_path_factory.mktemp("llama"))
