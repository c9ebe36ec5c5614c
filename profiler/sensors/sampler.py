"""The loop: a sample of every device at a steady rate, each written before the next is due.

The file holds one JSON object a line: a header, samples (those without `kind`), notices, and at an orderly end a last
record. A line is in the kernel's hands before the next sample is taken, so a crash of ours costs at most one sample.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from profiler.sensors.source import DeviceFacts, Source

FORMAT_VERSION = 1
DEFAULT_HZ = 10.0
MOST_HZ = 200.0
_encode = json.JSONEncoder(separators=(",", ":")).encode


def sample(source: Source, file: int, hz: float | None, wait: Callable[[float], bool]) -> None:
    """Sample until `wait(seconds)` returns True. `hz` None: as fast as the fastest sensor changes.

    `file` is a descriptor opened for writing. Raises SensorProblem where there is nothing to sample, OSError where the
    file cannot be written.
    """
    devices = source.prepare()
    try:
        rate = hz if hz is not None else _sensor_rate(devices)
        _write(file, [_header(source, devices, rate)])
        began, samples = time.process_time(), _loop(source, file, 1 / rate, wait)
        used = round(time.process_time() - began, 4)
        _write(file, [{"kind": "end", "ts_ns": time.time_ns(), "samples": samples, "cpu_s": used}])
    finally:
        source.close()


def _loop(source: Source, file: int, period_s: float, wait: Callable[[float], bool]) -> int:
    """Number of samples taken."""
    samples, due = 0, time.monotonic()
    while True:
        readings = source.read()
        lines: list[dict[str, Any]] = [{"ts_ns": item.ts_ns, "device": item.device, **item.values} for item in readings]
        lines += [{"ts_ns": time.time_ns(), **asdict(notice)} for notice in source.notices()]
        if lines:
            _write(file, lines)
        samples += len(readings)
        due = max(due + period_s, time.monotonic())  # what was missed is not made up for
        if wait(due - time.monotonic()) or not readings:
            return samples


def _sensor_rate(devices: Sequence[DeviceFacts]) -> float:
    """Per second; where no sensor was seen to change, the usual rate."""
    periods = [item.power_period_ns for item in devices if item.power_period_ns]
    return min(MOST_HZ, 1e9 / min(periods)) if periods else DEFAULT_HZ


def _header(source: Source, devices: Sequence[DeviceFacts], hz: float) -> dict[str, Any]:
    return {
        "stepscope_telemetry": FORMAT_VERSION, "kind": "header", "ts_ns": time.time_ns(), "source": source.name,
        "hz": round(hz, 3), "devices": [item.to_dict() for item in devices],
    }  # fmt: skip


def _write(file: int, records: Sequence[dict[str, Any]]) -> None:
    data = b"".join(_encode(record).encode() + b"\n" for record in records)
    while data:
        data = data[os.write(file, data) :]
