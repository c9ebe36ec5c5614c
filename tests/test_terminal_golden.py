"""What every reading command prints at 80 and at 120 columns, whole. `STEPSCOPE_GOLDEN=write` writes the files anew: look at the diff."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_runs import served, traced
from shell import stepscope

from analyzers.report.text import table, terminal_width

GOLDEN = Path(__file__).with_name("golden")
WIDTHS = (80, 120)
CASES = {
    "summary": ("summary", "served"), "summary-traced": ("summary", "traced"), "steps": ("steps", "served"),
    "steps-traced": ("steps", "traced"),
    "phases": ("phases", "served"), "kernels": ("kernels", "served"), "kernels-traced": ("kernels", "traced"),
    "kernels-op": ("kernels", "traced", "--by", "op"), "roofline": ("roofline", "served"),
    "roofline-kernel": ("roofline", "traced", "--by", "kernel"), "roofline-step": ("roofline", "served", "--by", "step"),
    "roofline-phase": ("roofline", "served", "--by", "phase"), "requests": ("requests", "served", "--pass", "profiled"),
    "requests-id": ("requests", "served", "--id", "c", "--pass", "profiled"), "idle": ("idle", "served"), "idle-traced": ("idle", "traced"),
    "energy": ("energy", "served"), "agents": ("agents", "served", "--by", "turn"), "findings": ("findings", "served"),
    "health": ("health", "traced"), "info": ("info", "served"), "explain": ("explain", "busy_ns"),
    "predict": ("predict", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--prompt", "3000", "--turns", "3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "s").mkdir()
    (folder / "t").mkdir()
    return {"served": served(folder / "s"), "traced": traced(folder / "t")}


def printed(case: str, width: int, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """Standard output, without what differs from one run of the tests to the next."""
    monkeypatch.setenv("COLUMNS", str(width))
    done = stepscope(*(runs.get(word, word) for word in CASES[case]))
    assert done.code == 0, done.err
    text = done.out
    for path in runs.values():
        text = text.replace(str(path.parent), "FOLDER")
    text = re.sub(r"run-\d{8}-\d{6}-[0-9a-f]{6}", "run-YYYYMMDD-HHMMSS-abcdef", text)
    return re.sub(r"[\d,]+ bytes", "N bytes", text)


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"$ COLUMNS={width}\n{printed(case, width, runs, monkeypatch)}" for width in WIDTHS)
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("STEPSCOPE_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("case", CASES)
def test_tables_fit(case: str, width: int, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences may be wrapped by the terminal, and so may a name behind "n ×"; columns may not."""
    lines = [line for line in printed(case, width, runs, monkeypatch).splitlines() if " × " not in line]
    assert [line for line in lines if len(line) > width and re.search(r"\S {2,}\S.* {2,}\S", line)] == []
    assert not any("\x1b" in line for line in lines)  # plain where it is no terminal


@pytest.mark.parametrize(
    ("columns", "width"), [("80", 80), ("120", 120), ("7", 40), ("", 100), ("0", 100), ("x", 100), ("9" * 30, 100)]
)
def test_width_of_the_terminal(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


def test_a_narrow_table_says_what_it_left_out() -> None:
    header, rows = (
        ["kernel", "n", "busy", "share", "p50", "p99"],
        [["a" * 30 + "b" * 30, "1,234", "12.34 ms", "45.6 %", "1.0 µs", "2.0 µs"]],
    )
    wide = table(header, rows, indent="", width=120)
    assert wide[1].startswith("a" * 30 + "b" * 30) and len(wide) == 2
    middle = table(header, rows, indent="", width=80)
    assert middle[1].startswith("aaaa") and "…" in middle[1] and "bbbb" in middle[1] and len(middle) == 2
    narrow = table(header, rows, indent="", width=40, drop=["n", "p99"])
    assert narrow[0].split() == ["kernel", "busy", "share"]
    assert narrow[2] == "(no room for: n, p50, p99)"
    assert max(map(len, narrow)) <= 40


@given(
    cells=st.integers(1, 7).flatmap(
        lambda n: st.lists(st.lists(st.text("abc é", max_size=40), min_size=n, max_size=n), min_size=1, max_size=5)
    ),
    left=st.integers(0, 2), width=st.integers(40, 130),
)  # fmt: skip
def test_any_table_fits_or_has_no_more_to_give(cells: list[list[str]], left: int, width: int) -> None:
    left = min(left, len(cells[0]))
    lines = table(cells[0], cells[1:], left=left, width=width)
    shown = [line for line in lines if not line.startswith("  (no room for")]
    kept = len(cells[0]) - (lines[-1].count(", ") + 1 if len(shown) < len(lines) else 0)
    if max(map(len, shown)) > width:
        assert kept <= left + 1
    if sum(max(len(row[i]) for row in cells) + 2 for i in range(len(cells[0]))) <= width:
        assert len(shown) == len(lines) == len(cells)  # nothing was left out
