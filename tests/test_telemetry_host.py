"""The CPU as the device: shares from /proc/stat, energy from RAPL, under a root of our own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.sensors.host import HostSource
from profiler.sensors.source import SensorProblem


class Machine:
    """A root with `proc` and `sys` as Linux has them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        self.cpuinfo = root / "proc/cpuinfo"
        self.cpuinfo.write_text("processor\t: 0\nmodel name\t: A CPU\n")
        self.ticks(busy=0, idle=0)

    def ticks(self, *, busy: int, idle: int, iowait: int = 0, steal: int = 0, guest: int = 0) -> None:
        line = f"cpu  {busy} 0 0 {idle} {iowait} 0 0 {steal} {guest} 0\n"
        (self.root / "proc/stat").write_text(line + "cpu0 1 2 3 4\nintr 5\n")

    def zone(self, folder: str, name: str, energy_uj: int, *, most_uj: int = 262_143_328_850) -> Path:
        path = self.root / "sys/class/powercap" / folder
        path.mkdir(parents=True)
        (path / "name").write_text(name + "\n")
        (path / "max_energy_range_uj").write_text(f"{most_uj}\n")
        (path / "energy_uj").write_text(f"{energy_uj}\n")
        return path / "energy_uj"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cpu_time_without_rapl(machine: Machine) -> None:
    source = HostSource(machine.root)
    (facts,) = source.prepare()
    assert (facts.source, facts.name, facts.device) == ("cpu", "A CPU", 0)
    machine.ticks(busy=60, idle=20, iowait=10, steal=10, guest=30)
    (reading,) = source.read()
    assert reading.values == {"cpu_util": 0.6}, "waiting and stolen time is not busy, a guest's is part of user time"
    (reading,) = source.read()
    assert reading.values == {}, "no tick has passed: not known, not 0"
    machine.ticks(busy=60, idle=120, iowait=10, steal=10)
    (reading,) = source.read()
    assert reading.values == {"cpu_util": 0.0}


def test_rapl_sums_packages_and_memory_and_takes_wraps_out(machine: Machine) -> None:
    most = 1_000_000
    package = machine.zone("intel-rapl:0", "package-0", 900_000, most_uj=most)
    machine.zone("intel-rapl:1", "package-1", 500_000, most_uj=most)
    machine.zone("intel-rapl:0:0", "core", 7)
    dram = machine.zone("intel-rapl:0:1", "dram", 100_000, most_uj=most)
    nested = machine.root / "sys/class/powercap/intel-rapl:0/intel-rapl:0:1"
    nested.symlink_to(dram.parent)  # sysfs has it twice
    machine.zone("intel-rapl:2", "psys", 5)
    source = HostSource(machine.root)
    (facts,) = source.prepare()
    assert (source.name, facts.source) == ("rapl", "rapl")
    (first,) = source.read()
    assert first.values["energy_j"] == 1.5 and "power_w" not in first.values
    package.write_text("100000\n")  # 200,001 µJ later
    dram.write_text("150000\n")
    began = time.monotonic()
    time.sleep(0.05)
    (second,) = source.read()
    assert second.values["energy_j"] == pytest.approx(1.5 + 0.200001 + 0.05)
    power = second.values["power_w"]
    assert isinstance(power, float) and 0 < power <= 0.250001 / 0.05
    assert power >= 0.25 / (time.monotonic() - began + 0.05)


def test_rapl_that_may_not_be_read_is_not_zero(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 1).write_text("denied\n")
    source = HostSource(machine.root)
    source.prepare()
    assert source.name == "cpu"
    machine.ticks(busy=1, idle=1)
    assert source.read()[0].values == {"cpu_util": 0.5}


def test_rapl_that_goes_away_is_said(machine: Machine) -> None:
    energy = machine.zone("intel-rapl:0", "package-0", 1)
    source = HostSource(machine.root)
    source.prepare()
    source.read()
    energy.unlink()
    assert "energy_j" not in source.read()[0].values
    (notice,) = source.notices()
    assert notice.kind == "unsupported" and notice.columns == ("energy_j", "power_w")
    assert source.notices() == []


def test_no_proc(tmp_path: Path) -> None:
    with pytest.raises(SensorProblem, match="cannot be read"):
        HostSource(tmp_path).prepare()


def test_the_process_with_a_root_of_its_own(machine: Machine) -> None:
    machine.zone("intel-rapl:0", "package-0", 5_000_000)
    out = machine.root / "t.jsonl"
    argv = [sys.executable, "-m", "profiler.sensors.main", str(out), "--source", "cpu", "--hz", "100"]
    process = subprocess.Popen([*argv, "--root", str(machine.root)], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while (not out.exists() or out.read_bytes().count(b"\n") < 5) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.communicate(timeout=30)
    assert process.returncode == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert records[0]["source"] == "rapl" and records[-1]["kind"] == "end"
    assert {item["energy_j"] for item in records[1:-1]} == {5.0}
    assert {item["power_w"] for item in records[2:-1]} == {0.0}


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "profiler.sensors.main", str(tmp_path / "no/such"), "--source", "cpu"]
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 4 and "No such file" in ended.stderr and "Traceback" not in ended.stderr
