"""One question to NVML, which knows when to stop asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml as nv

from profiler.sensors.source import Value

Answer = Mapping[str, Value]
# What no later call will answer, and what says that the device itself is no longer there.
UNSUPPORTED = frozenset({
    nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_NO_PERMISSION, nv.NVML_ERROR_FUNCTION_NOT_FOUND,
    nv.NVML_ERROR_INVALID_ARGUMENT, nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
})  # fmt: skip
GONE = frozenset({
    nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_RESET_REQUIRED, nv.NVML_ERROR_UNINITIALIZED,
    nv.NVML_ERROR_DRIVER_NOT_LOADED, 28,  # 28: GPU_NOT_FOUND, which older bindings do not name
})  # fmt: skip
MOST_FAILURES = 10  # in a row, of another kind: then it is not asked again


class DeviceGone(Exception):
    """The device does not answer any more; the message is the driver's."""


class Ask:
    """Columns that one call brings. `ways` are tried in order: the first that the driver supports is kept.

    With `every_ns` it is asked that often only, and what was said last holds in between.
    """

    def __init__(self, columns: tuple[str, ...], *ways: Callable[[Any], Answer], every_ns: int = 0) -> None:
        self.columns = columns
        self._ways = list(ways)
        self._every_ns = every_ns
        self._due_ns = 0
        self._held: Answer = {}
        self._failures = 0
        self.lost: str | None = None  # why it is not asked any more

    def __call__(self, handle: Any, now_ns: int) -> Answer:
        """What is known now; empty where it failed or is not supported. Raises DeviceGone.

        `now_ns` is of a clock that does not jump.
        """
        if now_ns < self._due_ns:
            return self._held
        self._due_ns = now_ns + self._every_ns
        while self._ways:
            try:
                answer = self._ways[0](handle)
            except nv.NVMLError as error:
                if error.value in GONE:
                    raise DeviceGone(str(error)) from error
                if error.value not in UNSUPPORTED:
                    return self._failed(error)
                self._ways.pop(0)
                self.lost = str(error)
            else:
                self._failures, self.lost = 0, None
                self._held = answer if self._every_ns else {}
                return answer
        return {}

    def _failed(self, error: nv.NVMLError) -> Answer:
        self._failures += 1
        self._held = {}
        if self._failures >= MOST_FAILURES:
            self.lost = f"{error}, {MOST_FAILURES} times in a row"
        return {}
