"""A CPU as the device: time from /proc/stat, energy from RAPL where the kernel lets us read it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from profiler.cpu_share import IDLE, IOWAIT, STEAL, machine_ticks
from profiler.sensors.counters import Unwrapped
from profiler.sensors.source import DeviceFacts, Notice, Reading, SensorProblem, Value

UJ_PER_J = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One RAPL domain: a package, or the memory beside it."""

    name: str
    path: Path
    counter: Unwrapped


class HostSource:
    """Device 0: all CPUs of the machine. `root` holds `proc` and `sys`; another one serves tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._cpuinfo = root / "proc/cpuinfo"
        self._powercap = root / "sys/class/powercap"
        self._zones: list[Zone] = []
        self._notices: list[Notice] = []
        self._ticks: tuple[int, int] | None = None
        self._energy: tuple[int, int] | None = None  # (µJ, ns of the monotonic clock)
        self.name = "cpu"

    def prepare(self) -> list[DeviceFacts]:
        """Raises SensorProblem where there is no /proc/stat."""
        self._ticks = self._read_ticks()
        if self._ticks is None:
            raise SensorProblem(f"{self._stat} cannot be read")
        self._zones = self._find_zones()
        self.name = "rapl" if self._zones else "cpu"
        return [DeviceFacts(device=0, source=self.name, name=self._cpu_name())]

    def read(self) -> list[Reading]:
        """Shares are of the time since the last call; the first sample has none."""
        values: dict[str, Value] = {}
        ts_ns = time.time_ns()
        if self._zones:
            values |= self._power()
        busy = self._busy()
        if busy is not None:
            values["cpu_util"] = busy
        return [Reading(device=0, ts_ns=ts_ns, values=values)]

    @property
    def zones(self) -> list[str]:
        """Names of the RAPL domains that are summed."""
        return [zone.name for zone in self._zones]

    def notices(self) -> list[Notice]:
        found, self._notices = self._notices, []
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _busy(self) -> float | None:
        """Share of the machine's CPU time since the last call; stolen time is not ours and not busy."""
        before, now = self._ticks, self._read_ticks()
        if now is None or before is None or now[1] <= before[1]:
            return None
        self._ticks = now
        return round(min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1]))), 4)

    def _read_ticks(self) -> tuple[int, int] | None:
        """(busy, all) ticks since boot."""
        fields = machine_ticks(self._stat)
        if fields is None:
            return None
        total = sum(fields)
        return total - fields[IDLE] - fields[IOWAIT] - fields[STEAL], total

    def _power(self) -> dict[str, Value]:
        total_uj, at_ns = 0, time.monotonic_ns()
        try:
            for zone in self._zones:
                total_uj += zone.counter.total(int(zone.path.read_text()))
        except (OSError, ValueError) as error:
            self._zones = []
            text = f"RAPL cannot be read any more: {error}"
            self._notices.append(Notice(kind="unsupported", device=0, text=text, columns=("energy_j", "power_w")))
            return {}
        before, self._energy = self._energy, (total_uj, at_ns)
        values: dict[str, Value] = {"energy_j": total_uj / UJ_PER_J}
        if before is not None and at_ns > before[1]:
            values["power_w"] = round((total_uj - before[0]) * 1e3 / (at_ns - before[1]), 3)  # µJ/ns = kW
        return values

    def _find_zones(self) -> list[Zone]:
        """Packages, and the memory beside each: it is no part of the package. Cores are one, and are left out."""
        zones: list[Zone] = []
        for folder in sorted([*self._powercap.glob("intel-rapl:*"), *self._powercap.glob("intel-rapl:*/intel-rapl:*")]):
            try:
                name = (folder / "name").read_text().strip()
                modulus = int((folder / "max_energy_range_uj").read_text())
                int((folder / "energy_uj").read_text())  # root alone may, on most machines
            except (OSError, ValueError):
                continue
            if any(zone.path.parent.name == folder.name for zone in zones):  # sysfs lists a subzone in two places
                continue
            if name.startswith("package") or name == "dram":
                # the stated range is the largest reading
                zones.append(Zone(name=name, path=folder / "energy_uj", counter=Unwrapped(modulus + 1)))
        return zones if any(zone.name.startswith("package") for zone in zones) else []

    def _cpu_name(self) -> str | None:
        try:
            lines = self._cpuinfo.read_text().splitlines()
        except OSError:
            return None
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
