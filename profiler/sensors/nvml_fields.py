"""Which call brings which column of `telemetry`, and in which unit. Units and ids are those of nvml.h."""

from __future__ import annotations

import time
from typing import Any

import pynvml as nv

from profiler.sensors.asking import Answer, Ask
from profiler.sensors.counters import Rate

S = 1_000_000_000
RESIDENT_BYTES = 256 << 20  # more than a driver keeps for itself, less than a CUDA context with a model
THROTTLE_REASONS: tuple[tuple[int, str], ...] = (
    (0x1, "gpu_idle"), (0x2, "application_clocks"), (0x4, "sw_power_cap"), (0x8, "hw_slowdown"), (0x10, "sync_boost"),
    (0x20, "sw_thermal"), (0x40, "hw_thermal"), (0x80, "hw_power_brake"), (0x100, "display_clocks"),
)  # fmt: skip

_POWER_AVERAGE, _POWER_INSTANT = 185, 186  # mW
_ALL_LINKS = 0xFFFFFFFF  # scope of the NVLink counters
# field → (column, bytes per unit of its counter)
_LINK_COUNTERS: dict[int, tuple[str, int]] = {138: ("nvlink_tx_bytes_s", 1024), 139: ("nvlink_rx_bytes_s", 1024)}
_PCIE_COUNTERS: dict[int, tuple[str, int]] = {197: ("pcie_tx_bytes_s", 1), 198: ("pcie_rx_bytes_s", 1)}
_VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def standard_asks() -> list[Ask]:
    """What every device is asked, at each sample unless it says otherwise."""
    return [
        Ask(("power_w",), _power),
        Ask(("sm_clock_mhz",), lambda h: {"sm_clock_mhz": nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM)}),
        Ask(("mem_clock_mhz",), lambda h: {"mem_clock_mhz": nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_MEM)}),
        Ask(("sm_util", "mem_util"), _utilization),
        Ask(("throttle",), *_throttle_ways()),
        Ask(("memory_used_bytes",), _memory_v2, _memory_v1),
        Ask(("resident",), _Resident().ask, every_ns=S),  # the driver walks its clients
        Ask(("temperature_c",), *_temperature_ways(), every_ns=S),
    ]


def energy_mj(handle: Any) -> int:
    """The energy counter. Raises NVMLError."""
    reading: int = nv.nvmlDeviceGetTotalEnergyConsumption(handle)
    return reading


class FieldValues:
    """Several columns by one nvmlDeviceGetFieldValues: power where both kinds are offered, and counters as rates."""

    def __init__(self, handle: Any, *, links: bool) -> None:
        """`links`: NVLink and PCIe counters too, where nothing better tells. Asks once what the device supports."""
        wanted: list[Any] = [_POWER_AVERAGE, _POWER_INSTANT]
        if links:
            wanted += [(field, _ALL_LINKS) for field in _LINK_COUNTERS]
            wanted += list(_PCIE_COUNTERS)
        try:
            answers = nv.nvmlDeviceGetFieldValues(handle, wanted)
        except nv.NVMLError:
            answers = []
        self._fields = [
            field
            for field, answer in zip(wanted, answers, strict=False)
            # a power of 0 is how some drivers say that there is none
            if answer.nvmlReturn == 0 and (answer.value.uiVal or field not in (_POWER_AVERAGE, _POWER_INSTANT))
        ]
        ids = {field if isinstance(field, int) else field[0] for field in self._fields}
        self._rates = {field: Rate() for field in ids - {_POWER_AVERAGE, _POWER_INSTANT}}
        counters = _LINK_COUNTERS | _PCIE_COUNTERS
        self.columns = tuple(
            {_POWER_AVERAGE: "power_w", _POWER_INSTANT: "power_instant_w"}.get(field) or counters[field][0]
            for field in sorted(ids)
        )

    def ask(self, handle: Any) -> Answer:
        """What the fields say now. Raises NVMLError."""
        found: dict[str, Any] = {}
        answers = nv.nvmlDeviceGetFieldValues(handle, self._fields)
        now_ns = time.monotonic_ns()
        for answer in answers:
            if answer.nvmlReturn != 0 or not 0 <= answer.valueType < len(_VALUE_OF_TYPE):
                continue
            value = getattr(answer.value, _VALUE_OF_TYPE[answer.valueType])
            if answer.fieldId == _POWER_AVERAGE:
                found["power_w"] = value / 1000
            elif answer.fieldId == _POWER_INSTANT:
                found["power_instant_w"] = value / 1000
            else:
                column, unit = _LINK_COUNTERS.get(answer.fieldId) or _PCIE_COUNTERS[answer.fieldId]
                rate = self._rates[answer.fieldId].per_second(value, now_ns)
                if rate is not None:
                    found[column] = round(rate * unit)
        return found


def both_ways(found: dict[str, Any]) -> None:
    """Add the sum of the two directions of a link where both are known."""
    for link in ("pcie", "nvlink"):
        sent, received = found.get(f"{link}_tx_bytes_s"), found.get(f"{link}_rx_bytes_s")
        if sent is not None and received is not None:
            found[f"{link}_bytes_s"] = sent + received


def throttle_names(mask: int) -> str:
    """Reasons, comma-separated; empty where the clocks are held by nothing."""
    return ",".join(name for bit, name in THROTTLE_REASONS if mask & bit)


def _power(handle: Any) -> Answer:
    return {"power_w": nv.nvmlDeviceGetPowerUsage(handle) / 1000}


def _utilization(handle: Any) -> Answer:
    rates = nv.nvmlDeviceGetUtilizationRates(handle)
    return {"sm_util": rates.gpu / 100, "mem_util": rates.memory / 100}


def _throttle_ways() -> list[Any]:
    calls = [
        getattr(nv, f"nvmlDeviceGetCurrentClocks{word}Reasons", None) for word in ("Event", "Throttle")
    ]  # renamed with driver 535
    return [lambda h, call=call: {"throttle": throttle_names(call(h))} for call in calls if call is not None]


def _temperature_ways() -> list[Any]:
    calls = [getattr(nv, f"nvmlDeviceGetTemperature{word}", None) for word in ("V", "")]
    return [
        lambda h, call=call: {"temperature_c": call(h, nv.NVML_TEMPERATURE_GPU)} for call in calls if call is not None
    ]


def _memory_v2(handle: Any) -> Answer:
    """Without what the driver keeps for itself."""
    return {"memory_used_bytes": nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).used}


def _memory_v1(handle: Any) -> Answer:
    return {"memory_used_bytes": nv.nvmlDeviceGetMemoryInfo(handle).used}


class _Resident:
    """Whether a program holds memory of the device.

    In a container the driver may list no process of another namespace: then the memory in use has to tell, where the
    driver counts it without its own.
    """

    def ask(self, handle: Any) -> Answer:
        if nv.nvmlDeviceGetComputeRunningProcesses(handle):
            return {"resident": True}
        try:
            used = _memory_v2(handle)["memory_used_bytes"]
        except nv.NVMLError:
            return {"resident": False}
        return {"resident": isinstance(used, int) and used >= RESIDENT_BYTES}
