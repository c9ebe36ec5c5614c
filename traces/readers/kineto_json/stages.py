"""The last stage: batches become Arrow tables and go to the sink in a thread of their own."""

from __future__ import annotations

import queue
import threading
from types import TracebackType

import numpy as np
import numpy.typing as npt

from traces.readers.kineto_json.delivery import Delivery
from traces.readers.kineto_json.rows import Cells

_QUEUED = 1  # batches that wait: each is up to 16 MiB
_WAIT_S = 0.2

_Texts = tuple[int, npt.NDArray[np.int32], npt.NDArray[np.uint8]]


class SinkStage:
    """Takes what a parser hands over and passes it to `delivery` in another thread, in order.

    An error of the sink is raised in the parser's thread, at the next hand-over or at the end.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._queue: queue.Queue[Cells | _Texts | None] = queue.Queue(maxsize=_QUEUED)
        self._error: BaseException | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kineto-sink", daemon=True)

    def events(self, cells: Cells) -> None:
        """See Delivery.events."""
        self._put(cells)

    def strings(self, first_id: int, offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> None:
        """See Delivery.strings."""
        self._put((first_id, offsets, data))

    def __enter__(self) -> SinkStage:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        whole = False
        try:
            if error is None:
                self._put(None)
                self._thread.join()
                whole = True
        finally:
            if not whole:  # an error, or ctrl-C while waiting: the thread must not outlive the sink
                self._abandoned.set()
                self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def _put(self, item: Cells | _Texts | None) -> None:
        while True:
            if self._error is not None:
                raise self._error
            try:
                return self._queue.put(item, timeout=_WAIT_S)
            except queue.Full:
                continue

    def _run(self) -> None:
        while not self._abandoned.is_set():
            try:
                item = self._queue.get(timeout=_WAIT_S)
            except queue.Empty:
                continue
            if item is None:
                return
            try:
                if isinstance(item, tuple):
                    self._delivery.strings(*item)
                else:
                    self._delivery.events(item)
            except BaseException as error:  # noqa: BLE001  # raised again in the parser's thread
                self._error = error
                return
