"""The Python interface that docs/python.md describes: its code runs, its functions are there and typed, the example works."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from reading_runs import served
from trace_builder import TraceBuilder

from analyzers.agents_reading import read_agents
from analyzers.energy_reading import EnergyQuestion, read_energy
from analyzers.findings import read_findings
from analyzers.idle_reading import read_idle
from analyzers.requests import Selection, read_requests
from traces.store import TraceStore, table_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:traces|analyzers)(?:\.\w+)+)\(", PAGE)))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served(tmp_path_factory.mktemp("python"))


def test_the_example(database: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", ROOT / "examples" / "notebook.py", database, tmp_path / "figure.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "abc123" in done.stdout and "24.60 ms busy: 52.7 %" in done.stdout and "gemm" in done.stdout
    assert "Plotly.newPlot" in (tmp_path / "figure.html").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_code_of_the_page_runs(code: str, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.duckdb").symlink_to(database)
    TraceBuilder(rank=0).label(1000, 50_000).launched(2000, 3000, 40_000, 1).write(tmp_path / "trace.json.gz")
    names: dict[str, Any] = {"target": tmp_path / "new.duckdb"}
    exec(compile(code, "docs/python.md", "exec"), names)
    if "slow" in names:
        assert names["slow"]["busy_ns"][0] == 5_900_000
    if "report" in names:
        assert names["target"].exists()


@pytest.mark.parametrize("name", NAMED)
def test_functions_of_the_page_are_there_typed_and_explained(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    function = getattr(importlib.import_module(module), attribute)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty and (function.__doc__ or "").strip()
    assert all(item.annotation is not inspect.Parameter.empty for item in signature.parameters.values())


def test_the_page_names_functions() -> None:
    assert len(NAMED) >= 12


def test_any_table_is_a_frame(database: Path) -> None:
    with TraceStore.open(database) as store:
        for name in table_names():
            rows = store.table(name)
            assert isinstance(rows, pl.DataFrame) and "run_id" in rows.columns
            assert set(rows["run_id"].unique()) <= {"abc123"}


def test_reports_are_values(database: Path) -> None:
    """They are frozen, and give what --json prints."""
    with TraceStore.open(database) as store:
        reports: list[Any] = [
            read_idle(store), read_requests(store, Selection(pass_name="profiled")), read_energy(store, EnergyQuestion()),
            read_agents(store), read_findings(store),
        ]  # fmt: skip
    for report in reports:
        assert report.to_dict()["version"] >= 1
        with pytest.raises(AttributeError):
            report.version = 2


def test_rows_make_a_figure(database: Path) -> None:
    with TraceStore.open(database) as store:
        steps = store.table("steps").sort("seq")
    figure = go.Figure(go.Bar(x=steps["seq"].to_list(), y=(steps["busy_ns"] / 1e6).to_list()))
    assert len(figure.data[0].x) == 14
