"""What is installed, and the import contracts: each is seen to fail when it is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiler", "traces", "analyzers")


def copy_of_the_tree(target: Path) -> Path:
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.nbi", "*.nbc")
        )
    for name in ("cli.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target / name)
    return target


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    (tree / "tests").mkdir()
    (tree / "tests" / "__init__.py").write_text("")
    (tree / "benchmarks").mkdir()
    (tree / "benchmarks" / "__init__.py").write_text("")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), "."],
        cwd=tree, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "cli.py"}
    for name in ("traces/schema.sql", "traces/sql/link_window.sql", "analyzers/models.toml", "analyzers/sql/summary_steps.sql",
                 "profiler/hooks/plugin/stepscope_hook-0.1.0.dist-info/entry_points.txt"):  # fmt: skip
        assert name in names
    source = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.sql")}
    assert source <= set(names)


BREACHES = {
    "traces is the bottom": ("traces/clock.py", "import analyzers.kernels"),
    "analyzers never import profiler": ("analyzers/presets.py", "from profiler import config"),
    "profiler never imports analyzers": ("profiler/sse.py", "from traces import store"),
    "no module of ours imports an engine": ("profiler/sse.py", "import torch"),
    "click only in commands modules": ("analyzers/presets.py", "import click"),
    "analyzers are independent": ("analyzers/kernels.py", "from analyzers import summary"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("contracts"))


def broken_contracts(tree: Path) -> list[str]:
    """Names of the contracts that lint-imports calls broken."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False)
    broken = [line.split(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line]
    assert done.returncode == bool(broken), done.stdout + done.stderr
    return broken


def test_the_contracts_hold(tree: Path) -> None:
    assert broken_contracts(tree) == []


@pytest.mark.parametrize("contract", BREACHES)
def test_a_broken_contract_is_seen(contract: str, tree: Path) -> None:
    name, statement = BREACHES[contract]
    path = tree / name
    before = path.read_text()
    try:
        path.write_text(f"{before}\n{statement}\n")
        assert any(found.startswith(contract) for found in broken_contracts(tree))
    finally:
        path.write_text(before)


def test_package_files_hold_no_code() -> None:
    """The top-level names are generic: their `__init__` is a docstring."""
    for name in PACKAGES:
        text = (ROOT / name / "__init__.py").read_text().strip()
        assert text.startswith('"""') and text.endswith('"""') and text.count('"""') == 2
