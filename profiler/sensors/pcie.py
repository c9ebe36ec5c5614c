"""PCIe traffic of devices that offer neither GPM nor counters.

nvmlDeviceGetPcieThroughput counts for 20 ms before it returns: in a thread of its own, so that no sample waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import pynvml as nv

from profiler.sensors.asking import Answer

EVERY_S = 1.0
_DIRECTIONS = (
    ("pcie_tx_bytes_s", nv.NVML_PCIE_UTIL_TX_BYTES),
    ("pcie_rx_bytes_s", nv.NVML_PCIE_UTIL_RX_BYTES),
)
COLUMNS: tuple[str, ...] = tuple(column for column, _ in _DIRECTIONS)


class PcieThread:
    """Asks each of `handles` (by device) once a second; a reading is given out once, with the next sample."""

    def __init__(self, handles: Mapping[int, Any]) -> None:
        self._handles = dict(handles)
        self._found: dict[int, Answer] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pcie", daemon=True)
        self._thread.start()

    def take(self, device: int) -> Answer:
        """What was measured since the last call; empty where nothing was."""
        return self._found.pop(device, {})

    def close(self) -> None:
        """End the thread; it is left behind where the driver does not return."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while self._handles and not self._stop.wait(EVERY_S):
            for device, handle in list(self._handles.items()):
                try:
                    # KB/s
                    self._found[device] = {
                        column: nv.nvmlDeviceGetPcieThroughput(handle, direction) * 1000
                        for column, direction in _DIRECTIONS
                    }
                except nv.NVMLError:
                    self._handles.pop(device)


def offered(handle: Any) -> bool:
    """Whether the device answers at all; takes 20 ms."""
    with contextlib.suppress(nv.NVMLError):
        nv.nvmlDeviceGetPcieThroughput(handle, nv.NVML_PCIE_UTIL_TX_BYTES)
        return True
    return False
