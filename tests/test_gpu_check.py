"""The GPU check: its verdicts, its deadlines, what it makes of a GPU's raw data, and a real run of it on this CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_check_folder import GpuLoop, gpu_loop, telemetry_lines, write_folder
from hypothesis import given
from hypothesis import strategies as st

from cli import Composition
from traces.ingest import IngestOptions, ingest_once

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where `benchmarks` is, which is not installed

from benchmarks.gpu_check import sensors  # noqa: E402
from benchmarks.gpu_check.deadline import Budget, run  # noqa: E402
from benchmarks.gpu_check.expected import EXPECTED, TITLES  # noqa: E402
from benchmarks.gpu_check.figures import figures_of  # noqa: E402
from benchmarks.gpu_check.measure import Facts  # noqa: E402
from benchmarks.gpu_check.verdict import (  # noqa: E402
    Expected,
    Figure,
    Row,
    judged,
    overridden,
    table,
    write_results,
)

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw data of a GPU with its database. `copied` is where a test breaks what lies beside the recording."""
    folder = write_folder(tmp_path_factory.mktemp("gpu"))
    judge(folder)
    return folder


@pytest.fixture
def copied(ingested: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ingested, tmp_path / "copy")


def judge(folder: Path) -> dict[str, Row]:
    """Rows by check, of raw data that is ingested here unless it was before."""
    target = folder / "run" / "run.duckdb"
    if not target.exists():
        ingest_once([str(folder / "run")], target, IngestOptions(finish=Composition().analysis()))
    return {row.check: row for row in judged(figures_of(folder, Facts.read(folder)), EXPECTED)}


def having(rows: dict[str, Row], status: str) -> set[str]:
    return {check for check, row in rows.items() if row.status == status}


# verdicts


@given(low=finite, span=st.floats(0, 1e6), value=st.floats())
def test_a_figure_passes_in_its_range_and_nowhere_else(low: float, span: float, value: float) -> None:
    entry = Expected(check="steps.x", what="x", low=low, high=low + span)
    (row,) = judged([Figure(check="steps.x", value=value)], {"steps.x": entry})
    assert row.status == ("pass" if value >= low and value <= low + span else "fail")  # NaN is in no range


def test_every_check_is_in_the_table_and_a_missing_figure_is_not_run() -> None:
    rows = judged([], EXPECTED)
    assert [row.check for row in rows] == list(EXPECTED)
    assert {row.status for row in rows} == {"not run"}
    assert {row.part for row in rows} == set(TITLES)
    with pytest.raises(KeyError, match="no expectation for other"):
        judged([Figure(check="other", value=1)], EXPECTED)


@given(note=st.text(max_size=400), value=st.one_of(st.none(), finite))
def test_the_table_fits_and_holds_no_control_characters(note: str, value: float | None) -> None:
    rows = judged([Figure(check=check, value=value, note=note) for check in ("steps.ran", "vllm.ran")], EXPECTED)
    for line in table(rows, TITLES):
        assert len(line) <= 100 or abs(value or 0) > 1e12, "only absurd figures are wider"
        assert line.isprintable()


@pytest.mark.parametrize(
    "text", ["steps.ran", "steps.ran=1", "steps.ran=2:1", "steps.ran=a:b", "nothing=1:2", "steps.ran=nan:2", ""]
)
def test_ranges_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="--expect"):
        overridden(EXPECTED, [text])


def test_results_in_json(tmp_path: Path) -> None:
    rows = judged([Figure(check="steps.ran", value=2.0)], overridden(EXPECTED, ["steps.ran=:1.5"]))
    write_results(rows, {"device": "none"}, tmp_path, "text")
    result = json.loads((tmp_path / "result.json").read_text())
    (row,) = [row for row in result["rows"] if row["check"] == "steps.ran"]
    assert (row["status"], row["value"], row["low"], row["high"]) == ("fail", 2.0, None, 1.5)
    assert (result["failed"], len(result["rows"])) == (1, len(EXPECTED))


# deadlines


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $!; while :; do sleep 1; done"
    began = time.monotonic()
    ended = run(["bash", "-c", script], tmp_path, "hang", deadline_s=0.5, grace_s=0.2)
    assert time.monotonic() - began < 10
    assert (ended.code, ended.problem is not None and "did not end" in ended.problem) == (None, True)
    child = int((tmp_path / "hang.out").read_text())
    deadline = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < deadline, "the child outlived its deadline"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["bash", "-c", "exit 0"], None),
        (["bash", "-c", "echo first >&2; echo why >&2; echo >&2; exit 3"], "exit code 3: why"),
        (["/nowhere/python"], "exit code 127: /nowhere/python: No such file or directory"),
    ],
)
def test_how_programs_end(tmp_path: Path, argv: list[str], problem: str | None) -> None:
    assert run(argv, tmp_path, "it", deadline_s=30).problem == problem


def test_a_budget_grants_what_is_left() -> None:
    assert Budget(1000).grant(10) == 10
    assert 0 < Budget(20).grant(100) < 20
    assert Budget(-1).grant(100) == 0


# sensors


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1000)), min_size=2, max_size=30))
def test_energy_of_a_power_reading(steps: list[tuple[int, float]]) -> None:
    samples, at = [], 0
    for gap, power in steps:
        at += gap
        samples.append({"ts_ns": at, "power_w": power})
    naive = 0.0
    for i in range(1, len(samples)):
        seconds = (samples[i]["ts_ns"] - samples[i - 1]["ts_ns"]) / 1e9
        naive += seconds * (samples[i]["power_w"] + samples[i - 1]["power_w"]) / 2
    assert sensors.integrated(samples) == pytest.approx(naive)


def test_the_counter_between_two_samples() -> None:
    samples = [{"ts_ns": 100, "energy_j": 1.0}, {"ts_ns": 200, "energy_j": 3.0}]
    assert [sensors.energy_at(samples, at) for at in (0, 100, 150, 200, 300)] == [1.0, 1.0, 2.0, 3.0, 3.0]


# raw data of a GPU


def test_raw_data_of_a_gpu_passes(ingested: Path) -> None:
    rows = judge(ingested)
    assert having(rows, "fail") == set()
    assert having(rows, "not run") == {check for check in EXPECTED if check.startswith(("vllm.", "sglang."))}
    assert rows["calibration.16bit"].value == pytest.approx(700 / 989.4)
    assert rows["calibration.bandwidth"].value == pytest.approx(4200 / 4800)
    assert rows["sensors.limit"].value == pytest.approx(650 / 700)
    assert rows["roof.large"].value == pytest.approx(2 * 8192**3 / 50e12 / 0.03)
    assert rows["graph.launches"].value == 1 and rows["sleeps.within"].note.endswith("host_launch 1.000")


def false_flops(loop: GpuLoop) -> None:
    loop.steps[0]["mm_flops"] += 1000


def false_attention(loop: GpuLoop) -> None:
    loop.steps[-4]["attention_flops"] *= 2


def false_sleep(loop: GpuLoop) -> None:
    for sleep in loop.sleeps:
        if sleep["where"] == "between steps":  # where the device multiplies
            sleep["start_ns"] = loop.sleeps[0]["start_ns"] - 30_000_000
            sleep["end_ns"] = sleep["start_ns"] + 25_000_000


def one_step_less(loop: GpuLoop) -> None:
    loop.steps.insert(0, dict(loop.steps[0]))


@pytest.mark.parametrize(
    ("break_it", "failing"),
    [
        (false_flops, {"flops.steps"}),
        (false_attention, {"flops.attention"}),
        (false_sleep, {"sleeps.between"}),
        (one_step_less, {"steps.ran", "steps.kinds"}),
    ],
)
def test_what_does_not_agree_with_the_recording_fails(
    copied: Path, break_it: Callable[[GpuLoop], None], failing: set[str]
) -> None:
    loop = gpu_loop()
    break_it(loop)
    assert failing <= having(judge(write_folder(copied, loop=loop)), "fail")


def test_a_product_faster_than_its_roof_fails(tmp_path: Path) -> None:
    rows = judge(write_folder(tmp_path, loop=gpu_loop(large_ns=10_000_000)))
    assert having(rows, "fail") == {"roof.large", "roof.most"}


def test_graphs_without_kernels_fail(tmp_path: Path) -> None:
    rows = judge(write_folder(tmp_path, loop=gpu_loop(graph_kernels=0)))
    assert {"graph.kernels", "graph.linked", "graph.alike", "graph.eager"} <= having(rows, "fail")


def test_a_counter_that_shows_too_much_fails(copied: Path) -> None:
    rows = judge(write_folder(copied, telemetry=telemetry_lines(counter=1.3)))
    assert having(rows, "fail") == {"sensors.energy", "sensors.limit"}


def test_no_gpm_is_said(copied: Path) -> None:
    rows = judge(write_folder(copied, telemetry=telemetry_lines(gpm=False)))
    assert having(rows, "fail") == set()
    assert {check for check in having(rows, "not run") if check.startswith("gpm.")} == {
        check for check in EXPECTED if check.startswith("gpm.")
    }
    assert rows["gpm.sm"].note.startswith("GPM is absent")


@pytest.mark.parametrize(
    ("name", "content", "failing"),
    [
        ("calibration.out", "", "calibration.ran"),
        ("calibration.out", "[1, 2]", "calibration.ran"),
        ("telemetry.jsonl", "", "sensors.ran"),
        ("telemetry.jsonl", '{"kind":"header","hz":10,"devices":[]}\n{"ts_ns":5,"dev', "sensors.ran"),
        ("work.jsonl", '{"section": "loop", "error": "RuntimeError: out of memory"}\n', "steps.ran"),
        ("work.jsonl", '{"section": "lo', "steps.ran"),
        ("run/run.duckdb", "no database", "steps.ran"),
    ],
)
def test_raw_data_that_is_missing_or_torn_fails_its_part_only(
    copied: Path, name: str, content: str, failing: str
) -> None:
    (copied / name).write_text(content)
    rows = judge(copied)
    assert failing in having(rows, "fail")
    others = {check.partition(".")[0] for check in having(rows, "fail")}
    assert others <= {failing.partition(".")[0], "sensors"}, "no load: the sensors have nothing to be held against"
    assert having(rows, "pass"), "the other parts stand"


def test_an_engine_that_failed_fails(copied: Path) -> None:
    folder = write_folder(
        copied, reasons={"sglang": "it is not installed"}, problems={"vllm": "exit code 4: out of memory"}
    )
    rows = judge(folder)
    assert having(rows, "fail") == {"vllm.ran"} and rows["vllm.ran"].note == "exit code 4: out of memory"


# the program


def program(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('echo \'{"torch": false, "vllm": false, "sglang": false}\'', "has no torch"),
        ("echo nonsense", "cannot be used"),
        ("exit 1", "cannot be used"),
    ],
)
def test_an_interpreter_without_torch_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    ended = program("--python", str(python), "--out", str(tmp_path / "out"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ") and said in ended.stderr and "Traceback" not in ended.stderr


def test_a_budget_that_is_used_up_ends_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 300\n")
    python.chmod(0o755)
    began = time.monotonic()
    ended = program("--python", str(python), "--out", str(tmp_path / "out"), "--budget-s", "6")
    assert (ended.returncode, time.monotonic() - began < 60) == (2, True)
    assert "did not end within" in ended.stderr


def test_data_of_something_else_is_refused(copied: Path) -> None:
    (copied / "work.jsonl").write_text('{"section": "load", "start_ns": 5}\n')
    ended = program("--judge", str(copied))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "other data than a check writes" in ended.stderr and "Traceback" not in ended.stderr


def test_a_folder_that_is_none_of_a_check_is_refused(tmp_path: Path) -> None:
    ended = program("--judge", str(tmp_path))
    assert ended.returncode == 2 and ended.stderr.startswith("error: ")
    ended = program("--out", str(tmp_path))
    assert ended.returncode == 2 and "exists" in ended.stderr


@pytest.fixture(scope="module")
def on_this_cpu(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    folder = tmp_path_factory.mktemp("gpu-check") / "out"
    began = time.monotonic()
    ended = program("--no-engine", "--device", "cpu", "--out", str(folder))
    return folder, ended, time.monotonic() - began


engine = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]
CHECKED_ON_A_CPU = {
    "calibration.ran", "sensors.ran", "sensors.period", "steps.ran", "steps.kinds", "steps.linked", "steps.coverage",
    "steps.prefill_side", "steps.decode_side", "sums.window", "sums.gaps", "sums.steps", "sums.bounds", "sums.unrecorded",
    "sleeps.between", "sleeps.within", "flops.products", "flops.steps", "flops.attention", "roof.calibrated",
}  # fmt: skip


class TestOnThisCpu:
    pytestmark = engine

    def test_it_runs_to_the_end(self, on_this_cpu: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
        folder, ended, seconds = on_this_cpu
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert seconds < 240
        result = json.loads((folder / "result.json").read_text())
        statuses = {row["check"]: row["status"] for row in result["rows"]}
        assert list(statuses) == list(EXPECTED)
        assert {check for check, status in statuses.items() if status == "pass"} - {
            "roof.large",
            "roof.most",
        } == CHECKED_ON_A_CPU
        assert result["failed"] == 0
        assert (folder / "table.txt").read_text() == ended.stdout
        assert max(len(line) for line in ended.stdout.splitlines()[:-1]) <= 100
        assert f"{len(CHECKED_ON_A_CPU)} pass, 0 fail" in ended.stdout

    def test_what_needs_a_gpu_says_so(self, on_this_cpu: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
        rows: list[dict[str, Any]] = json.loads((on_this_cpu[0] / "result.json").read_text())["rows"]
        notes = {row["check"]: row["note"] for row in rows if row["status"] == "not run"}
        assert all(notes.values())
        assert notes["gpm.sm"] == notes["sensors.energy"] == notes["calibration.16bit"]
        assert notes["graph.launches"] == "graphs need a GPU" and notes["vllm.ran"] == "--no-engine"

    def test_a_wrong_expectation_fails(self, on_this_cpu: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
        ended = program("--judge", str(on_this_cpu[0]), "--expect", "steps.ran=2:3", "--expect", "sleeps.within=1.5:")
        assert ended.returncode == 1, ended.stdout + ended.stderr
        failed = [line for line in ended.stdout.splitlines() if line.startswith("  fail")]
        assert len(failed) == 2 and "steps found" in failed[0] and "within steps" in failed[1]


# the page


def test_the_page_lists_every_check_with_its_range() -> None:
    page = (ROOT / "docs" / "gpu-check.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    assert listed == [f"| `{entry.check}` | {entry.what} | {entry.range} |" for entry in EXPECTED.values()]
