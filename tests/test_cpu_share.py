"""How much processor time others took: from counters that are known, and on this machine with a load that is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.cpu_share import CpuTimes, cpu_times, others


def root_with(folder: Path, machine: str, **processes: str) -> Path:
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/stat").write_text(f"cpu  {machine}\ncpu0 1 2 3\n")
    for pid, ticks in {str(os.getpid()): "0 0", **processes}.items():
        (folder / f"proc/{pid}").mkdir()
        (folder / f"proc/{pid}/stat").write_text(f"{pid} (a) b) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 9 9")
    return folder


def test_counters_are_read_from_proc(tmp_path: Path) -> None:
    """user nice system idle iowait irq softirq steal guest: guest is in user, stolen time was taken by others."""
    root = root_with(tmp_path / "a", "100 10 50 400 40 1 2 30 77 0", **{"7": "20 5", "8": "1 1"})
    assert cpu_times([7, 8, 999], root) == CpuTimes(own=27, taken=193, whole=633)


@pytest.mark.parametrize("machine", ["", "1 2 3", "a b c d e f g h"])
def test_a_system_that_does_not_say_is_not_known(tmp_path: Path, machine: str) -> None:
    assert cpu_times([], root_with(tmp_path / "a", machine)) is None
    assert cpu_times([], tmp_path / "none") is None


def test_others_is_what_was_taken_less_our_own() -> None:
    before, after = CpuTimes(own=10, taken=100, whole=1000), CpuTimes(own=50, taken=250, whole=1200)
    assert others(before, after) == pytest.approx((150 - 40) / 200)
    assert others(before, before) is None and others(None, after) is None and others(before, None) is None
    assert others(before, CpuTimes(own=500, taken=250, whole=1200)) == 0.0, "ticks are counted at other moments"


def test_a_process_that_works_is_others_unless_it_is_ours() -> None:
    cpus = os.cpu_count() or 1
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.3)
            before = cpu_times([]), cpu_times([busy.pid])
            time.sleep(1.5)
            after = cpu_times([]), cpu_times([busy.pid])
        finally:
            busy.kill()
    foreign, own = others(before[0], after[0]), others(before[1], after[1])
    assert foreign is not None and own is not None
    assert foreign - own == pytest.approx(1 / cpus, rel=0.6), (
        "one processor's worth, less what the machine's other work takes"
    )
