"""NVIDIA GPUs through NVML: every device the engine sees, each asked for what its driver offers."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml as nv

from profiler.sensors import gpm, nvml_fields, pcie
from profiler.sensors.asking import Ask, DeviceGone
from profiler.sensors.counters import Unwrapped
from profiler.sensors.source import DeviceFacts, Notice, Reading, SensorProblem, Value
from profiler.sensors.visible import visible_indices

COUNTER_MODULUS = 1 << 32  # mJ; of drivers whose counter has 32 bits. With 64 it outlives the machine
PERIOD_BUDGET_S = 1.2  # to see how often the power reading changes, before sampling begins
PERIOD_POLL_S = 0.002
_ENOUGH_CHANGES = 12


class _Device:
    """One GPU while it answers."""

    def __init__(self, ordinal: int, index: int, handle: Any) -> None:
        self.ordinal, self.index, self.handle = ordinal, index, handle
        self.uuid = _told(nv.nvmlDeviceGetUUID, handle)
        self.name = _told(nv.nvmlDeviceGetName, handle)
        self.pci = _told(lambda h: _text(nv.nvmlDeviceGetPciInfo(h).busId), handle)
        self.limit_mw = _told(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
        self.memory_bytes = _told(lambda h: int(nv.nvmlDeviceGetMemoryInfo(h).total), handle)
        self.period_ns: int | None = None
        self.counter = Unwrapped(COUNTER_MODULUS)
        self.gpm = gpm.opened(handle)
        self.asks = self._asks()
        self.unasked: list[Ask] = []  # what was given up, until it has been said

    def _asks(self) -> list[Ask]:
        fields = nvml_fields.FieldValues(self.handle, links=self.gpm is None)
        asks = [Ask(("energy_j",), self._energy)]
        if fields.columns:
            asks.append(Ask(fields.columns, fields.ask))
        if self.gpm is not None:
            asks.append(Ask(gpm.COLUMNS, self.gpm.ask))
        return asks + [ask for ask in nvml_fields.standard_asks() if not set(ask.columns) <= set(fields.columns)]

    def _energy(self, handle: Any) -> dict[str, Value]:
        return {"energy_j": self.counter.total(nvml_fields.energy_mj(handle)) / 1000}

    def columns(self) -> set[str]:
        """What it is still asked for."""
        return {column for ask in self.asks for column in ask.columns}

    def read(self) -> Reading:
        """A sample. Raises DeviceGone. The counter of energy comes first: its time is the sample's."""
        ts_ns, now_ns = time.time_ns(), time.monotonic_ns()
        found: dict[str, Value] = {}
        for ask in self.asks:
            found.update(ask(self.handle, now_ns))
        lost = [ask for ask in self.asks if ask.lost is not None]
        if lost:
            self.unasked += lost
            self.asks = [ask for ask in self.asks if ask.lost is None]
            if not self.asks:
                raise DeviceGone(lost[0].lost)
        return Reading(device=self.ordinal, ts_ns=ts_ns, values=found)

    def power_reading(self) -> float | None:
        """The reading that changes fastest; None where there is none."""
        found: dict[str, Value] = {}
        for ask in self.asks:
            if {"power_w", "power_instant_w"} & set(ask.columns):
                found.update(ask(self.handle, time.monotonic_ns()))
        value = found.get("power_instant_w", found.get("power_w"))
        return value if isinstance(value, float) else None

    def facts(self) -> DeviceFacts:
        """For the header."""
        return DeviceFacts(
            device=self.ordinal, source="nvml", name=self.name, uuid=self.uuid, pci=self.pci, index=self.index,
            memory_bytes=self.memory_bytes, power_limit_w=None if self.limit_mw is None else self.limit_mw / 1000,
            power_period_ns=self.period_ns,
        )  # fmt: skip


class NvmlSource:
    """`visible`: CUDA_VISIBLE_DEVICES of the engine; None: all devices."""

    name = "nvml"

    def __init__(self, visible: str | None = None) -> None:
        self._visible = visible
        self._devices: list[_Device] = []
        self._notices: list[Notice] = []
        self._pcie: pcie.PcieThread | None = None

    def prepare(self) -> list[DeviceFacts]:
        """Raises SensorProblem where NVML cannot be used or lists no device."""
        try:
            nv.nvmlInit()
            count = nv.nvmlDeviceGetCount()
        except nv.NVMLError as error:
            raise SensorProblem(f"NVML: {error}") from error
        handles = {index: handle for index in range(count) if (handle := _told(nv.nvmlDeviceGetHandleByIndex, index))}
        uuids = [_told(nv.nvmlDeviceGetUUID, handles[index]) if index in handles else None for index in range(count)]
        order = [index for index in visible_indices(uuids, self._visible) if index in handles]
        self._devices = [_Device(ordinal, index, handles[index]) for ordinal, index in enumerate(order)]
        if not self._devices:
            raise SensorProblem(f"NVML lists {count} devices, of which the engine sees none that answers")
        slow = {
            device.ordinal: device.handle
            for device in self._devices
            if not any(column.startswith("pcie") for column in device.columns()) and pcie.offered(device.handle)
        }
        self._pcie = pcie.PcieThread(slow) if slow else None
        _measure_periods(self._devices)
        return [device.facts() for device in self._devices]

    def read(self) -> list[Reading]:
        """A sample of each device that still answers."""
        readings: list[Reading] = []
        for device in list(self._devices):
            try:
                reading = device.read()
            except DeviceGone as error:
                self._devices.remove(device)
                self._note("gone", device, f"{error}; its series ends")
                continue
            values = dict(reading.values)
            if self._pcie is not None:
                values.update(self._pcie.take(device.ordinal))
            nvml_fields.both_ways(values)
            readings.append(Reading(device=device.ordinal, ts_ns=reading.ts_ns, values=values))
            self._look_after(device)
        return readings

    def notices(self) -> list[Notice]:
        """What happened since the last call."""
        found, self._notices = self._notices, []
        return found

    def close(self) -> None:
        """Give NVML back."""
        if self._pcie is not None:
            self._pcie.close()
        for device in self._devices:
            if device.gpm is not None:
                device.gpm.close()
        with contextlib.suppress(nv.NVMLError):
            nv.nvmlShutdown()

    def _look_after(self, device: _Device) -> None:
        for ask in device.unasked:
            self._note("unsupported", device, f"{ask.lost}; not asked again", ask.columns)
        device.unasked = []
        if device.counter.resets:
            self._note("reset", device, "the energy counter started anew: what came meanwhile is lost", ("energy_j",))
            device.counter.resets = 0

    def _note(self, kind: str, device: _Device, text: str, columns: tuple[str, ...] = ()) -> None:
        self._notices.append(Notice(kind=kind, device=device.ordinal, text=text, columns=columns))


def _measure_periods(devices: Sequence[_Device]) -> None:
    """Fill `period_ns`: the median time between changes of the power reading, where at least three were seen."""
    changes: dict[int, list[int]] = {device.ordinal: [] for device in devices}
    last: dict[int, float | None] = {}
    end = time.monotonic() + PERIOD_BUDGET_S
    watched = list(devices)
    while watched and time.monotonic() < end:
        for device in list(watched):
            try:
                value = device.power_reading()
            except DeviceGone:  # said at the first sample
                value = None
            seen = changes[device.ordinal]
            if value is None or len(seen) > _ENOUGH_CHANGES:
                watched.remove(device)
            elif device.ordinal in last and value != last[device.ordinal]:
                seen.append(time.monotonic_ns())
            last[device.ordinal] = value
        time.sleep(PERIOD_POLL_S)
    for device in devices:
        times = changes[device.ordinal]
        if len(times) > 2:
            device.period_ns = round(statistics.median(b - a for a, b in itertools.pairwise(times)))


def _told(call: Callable[[Any], Any], argument: Any) -> Any:
    """What NVML says, or None."""
    try:
        return call(argument)
    except nv.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
