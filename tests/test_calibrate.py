"""Calibration: a short real measurement, how results are kept and found again, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from profiler.calibrate import CalibrateConfig, compute_cpus, measure, report
from profiler.commands import calibrate as calibrate_command
from traces.calibration import (
    Calibration,
    MatrixRate,
    MemoryRate,
    binding_of,
    bound_cpus,
    calibration_path,
    machine_id,
    matching,
    read_calibrations,
    store_calibration,
)
from traces.errors import EngineFailed, UsageProblem

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="this interpreter has no torch")
KIB, MIB = 1 << 10, 1 << 20


def rate(dtype: str, best: float, n: int = 1) -> MatrixRate:
    return MatrixRate(dtype=dtype, m=1, k=1, n=n, best=best, median=best * 0.9, spread=0.2, repeats=5)


def memory(size: int, best: float, operation: str = "read") -> MemoryRate:
    return MemoryRate(operation=operation, working_set_bytes=size, best=best, median=best, spread=0.0, repeats=5)


def calibration(**changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "created_ns": 1, "device_kind": "cpu", "device_name": "AMD EPYC", "threads": 1, "bind": "auto",
        "torch_version": "2", "short": False, "matrix": (rate("bf16", 4e11), rate("bf16", 3e11, 2), rate("fp32", 4e10)),
        "memory": (memory(256 * KIB, 1e11), memory(256 * MIB, 1.8e10), memory(256 * MIB, 2e10, "copy")),
        "launch_ns": 1700.0, "others_cpu": 0.1, "quiet": True,
    }  # fmt: skip
    return Calibration(**{**values, **changes})


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@needs_torch
def test_a_real_short_measurement(state: Path) -> None:
    """The command itself: it measures, says so, and what it keeps is what a run of this machine is judged by."""
    started = time.monotonic()
    answer = CliRunner().invoke(calibrate_command, ["--device", "cpu", "--short", "--json"])
    assert answer.exit_code == 0, answer.output
    found = Calibration.from_dict(json.loads(answer.stdout))
    assert time.monotonic() - started < 60  # seven seconds on an idle machine
    assert found.threads == len(compute_cpus()) and found.bind == "auto"
    assert {item.dtype for item in found.matrix} == {"bf16", "fp32"}
    assert all(item.best >= item.median > 0 and item.repeats >= 1 and item.spread >= 0 for item in found.matrix)
    assert 1e9 < (found.peak_flops("bf16") or 0) < 1e15
    assert found.peak_bandwidth is not None and 1e8 < found.peak_bandwidth < 1e13
    sizes = {item.working_set_bytes for item in found.memory}
    assert max(sizes) >= 64 * MIB and len(sizes) >= 3
    assert found.launch_ns is not None and 10 < found.launch_ns < 1e7
    assert found.others_cpu is not None and found.quiet == (found.others_cpu <= max(0.2, 0.02 * (os.cpu_count() or 1)))
    assert found.quiet or any("not idle" in warning for warning in found.warnings)
    kept = read_calibrations()
    assert kept == (found,)
    assert matching(kept, device_name=found.device_name) == found
    assert calibration_path().is_relative_to(state) and str(calibration_path()) in answer.stderr


@needs_torch
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_binding_decides_the_number_of_threads() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    found = measure(CalibrateConfig(device="cpu", bind=f"{first},{second}", short=True, seconds=1.0))
    assert (found.threads, found.bind) == (2, f"{first},{second}")


def test_torch_stays_out_of_this_process() -> None:
    code = "import profiler.calibrate, traces.calibration, analyzers.hardware, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_interpreter_without_torch_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I -c "import torch"\n')
    bare.chmod(0o755)
    with pytest.raises(UsageProblem, match="has no torch") as caught:
        measure(CalibrateConfig(python=bare))
    assert "--python" in caught.value.hint


def test_a_probe_that_fails_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ValueError: broken' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EngineFailed, match="ValueError: broken"):
        measure(CalibrateConfig(python=broken))


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="cannot be run"):
        measure(CalibrateConfig(python=tmp_path / "missing"))


def test_threads_that_are_not_bound_are_measured_on_as_many_processors() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert compute_cpus("nobind:1") == (allowed[0],)
    assert compute_cpus("nobind") == compute_cpus("nobind:4000") == tuple(allowed)
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    assert binding_of(env | {"OMP_NUM_THREADS": "6"}) == "nobind:6"
    assert binding_of(env) == binding_of(env | {"OMP_NUM_THREADS": "x"}) == "nobind"
    assert binding_of({"OMP_NUM_THREADS": "6"}) == "auto" and binding_of({"VLLM_CPU_OMP_THREADS_BIND": "0-1"}) == "0-1"


@pytest.mark.parametrize("bind", ["4096", "0-4096", "", "1-"])
def test_a_binding_that_cannot_be_had(bind: str) -> None:
    with pytest.raises(UsageProblem, match="cannot bind"):
        compute_cpus(bind)


def test_the_default_leaves_one_core_to_the_scheduler() -> None:
    cpus = compute_cpus()
    assert 1 <= len(cpus) <= max(1, len(os.sched_getaffinity(0)) - 1)
    assert set(cpus) <= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-2", (0, 1, 2)), ("5,2-3", (5, 2, 3)), ("0-1|2-3", (0, 1)), ("auto", None), ("nobind", None)],
)
def test_lists_of_cpus(text: str, cpus: tuple[int, ...] | None) -> None:
    assert bound_cpus(text) == cpus


def test_peaks_are_the_best_product_and_the_memorys_own_rate() -> None:
    found = calibration()
    assert (found.peak_flops("bf16"), found.peak_flops("fp32"), found.peak_flops("int8")) == (4e11, 4e10, None)
    assert found.peak_bandwidth == 2e10  # not the cache's
    assert found.bandwidth_for(10 * KIB) == found.bandwidth_for(MIB) == 1e11
    assert found.bandwidth_for(512 * MIB) == 2e10
    assert calibration(memory=()).peak_bandwidth is None
    assert calibration(memory=()).bandwidth_for(1) is None


def test_a_calibration_survives_its_file() -> None:
    store_calibration(calibration(warnings=("a", "b")))
    assert read_calibrations() == (calibration(warnings=("a", "b")),)


def test_a_new_measurement_replaces_its_like_only() -> None:
    for item in (calibration(), calibration(bind="0-1", threads=2), calibration(created_ns=5, launch_ns=2.0)):
        store_calibration(item)
    assert [(item.bind, item.created_ns) for item in read_calibrations()] == [("auto", 5), ("0-1", 1)]


def test_a_short_measurement_never_replaces_a_full_one() -> None:
    store_calibration(calibration())
    store_calibration(calibration(short=True, created_ns=9))
    assert len(read_calibrations()) == 2
    chosen = matching(read_calibrations(), device_name="AMD EPYC")
    assert chosen is not None and not chosen.short
    store_calibration(calibration(created_ns=10))
    assert [item.short for item in read_calibrations()] == [False]


def test_quiet_measurements_are_preferred_to_newer_disturbed_ones() -> None:
    quiet, disturbed = calibration(), calibration(created_ns=9, quiet=False)
    assert matching((disturbed, quiet), device_name="AMD EPYC") == quiet


def test_a_run_finds_the_measurement_of_its_device_and_threads() -> None:
    one, two = calibration(), calibration(bind="0-1", threads=2)
    gpu = replace(calibration(bind=None, threads=None), device_kind="cuda", device_name="NVIDIA H200")
    entries = (one, two, gpu)
    assert matching(entries, device_name="AMD EPYC") == one
    assert matching(entries, device_name="AMD EPYC", bind="2-3") == two  # as many CPUs
    assert matching(entries, device_name="AMD EPYC", bind="0-3") is None
    assert matching(entries, device_name="NVIDIA H200") == gpu
    assert matching(entries, device_name="Intel Xeon") is None
    assert matching(entries, device_name=None) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"entries": [{"version": 1}]}', '{"entries": [{"version": 99}]}', "\x00"]
)
def test_a_damaged_file_counts_as_none_and_is_replaced(text: str) -> None:
    calibration_path().parent.mkdir(parents=True)
    calibration_path().write_text(text)
    assert read_calibrations() == ()
    store_calibration(calibration())
    assert read_calibrations() == (calibration(),)


def test_a_machines_id_is_steady_and_says_nothing() -> None:
    assert machine_id() == machine_id()
    assert len(machine_id()) == 16 and int(machine_id(), 16) >= 0


def test_the_report_names_every_rate() -> None:
    text = "\n".join(report(calibration()))
    for words in ("AMD EPYC: 1 thread (auto)", "0.400", "100.0", "20.0 ", "1.7 µs", "0.10 CPUs"):
        assert words in text
