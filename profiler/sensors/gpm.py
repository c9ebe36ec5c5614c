"""GPM: how active the units of an SM are, on Hopper and later, without DCGM.

A metric is the average between two samples of the device's counters; ours are one sampling period apart, and at least
100 ms, below which the driver's averages are noise.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pynvml as nv

from profiler.sensors.asking import Answer

LEAST_NS = 95_000_000  # a tick of 100 ms may come a little early
_MIB = 1 << 20
# metric → (column, factor): shares are in percent, links in MiB/s
METRICS: dict[int, tuple[str, float]] = {
    2: ("sm_active", 0.01),
    5: ("tensor_active", 0.01),
    10: ("dram_active", 0.01),
    11: ("fp64_active", 0.01),
    12: ("fp32_active", 0.01),
    13: ("fp16_active", 0.01),
    20: ("pcie_tx_bytes_s", _MIB),
    21: ("pcie_rx_bytes_s", _MIB),
    60: ("nvlink_rx_bytes_s", _MIB),
    61: ("nvlink_tx_bytes_s", _MIB),
}
COLUMNS: tuple[str, ...] = tuple(column for column, _ in METRICS.values())


class Gpm:
    """The two samples of one device."""

    def __init__(self) -> None:
        self._samples = [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]
        self._taken_ns: int | None = None  # of the older one, by a clock that does not jump
        self._wanted = list(METRICS)

    def ask(self, handle: Any) -> Answer:
        """Averages since the last call that brought some. Raises NVMLError."""
        now_ns = time.monotonic_ns()
        if self._taken_ns is not None and now_ns - self._taken_ns < LEAST_NS:
            return {}
        older, newer = self._samples
        nv.nvmlGpmSampleGet(handle, newer)
        before, self._taken_ns = self._taken_ns, now_ns
        self._samples = [newer, older]
        return {} if before is None or not self._wanted else self._metrics(older, newer)

    def _metrics(self, older: Any, newer: Any) -> Answer:
        get = nv.c_nvmlGpmMetricsGet_t()
        get.version = nv.NVML_GPM_METRICS_GET_VERSION
        get.numMetrics, get.sample1, get.sample2 = len(self._wanted), older, newer
        for place, metric in enumerate(self._wanted):
            get.metrics[place].metricId = metric
        nv.nvmlGpmMetricsGet(get)
        found: dict[str, Any] = {}
        supported = []
        for place, metric in enumerate(self._wanted):
            answer = get.metrics[place]
            if answer.nvmlReturn in (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_INVALID_ARGUMENT):
                continue
            supported.append(metric)
            column, factor = METRICS[metric]
            if answer.nvmlReturn == nv.NVML_SUCCESS and math.isfinite(answer.value):
                value = answer.value * factor
                found[column] = round(value) if column.endswith("_bytes_s") else round(value, 6)
        self._wanted = supported
        return found

    def close(self) -> None:
        """Give the samples back."""
        for sample in self._samples:
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlGpmSampleFree(sample)


def opened(handle: Any) -> Gpm | None:
    """With its first sample taken; None where the device has no GPM or the driver does not let us read it."""
    try:
        if not nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        found = Gpm()
    except nv.NVMLError:
        return None
    try:
        found.ask(handle)
    except nv.NVMLError:
        found.close()
        return None
    return found
