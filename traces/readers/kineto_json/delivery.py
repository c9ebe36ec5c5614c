"""From batches of parsed rows to the sink: begin/end pairs completed, Arrow tables made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traces.readers.base import Cat
from traces.readers.kineto_json.pairs import Pairing
from traces.readers.kineto_json.rows import CAT, PHASE, Cells, event_table, string_table

Put = Callable[[str, pa.Table], None]


class Receiver(Protocol):
    """What a parser hands its batches to."""

    def events(self, cells: Cells) -> None:
        """Rows of the internal columns, in file order."""
        ...

    def strings(self, first_id: int, offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> None:
        """Texts between `offsets` of `data`, ids from `first_id` on."""
        ...


class Delivery:
    """Takes the batches of one parser; `put(table, data)` may run in the parser's thread."""

    def __init__(self, src: int, put: Put) -> None:
        self._src = src
        self._put = put
        self._pairing = Pairing()
        self._by_cat = np.zeros(256, dtype=np.int64)

    def events(self, cells: Cells) -> None:
        """See Receiver."""
        if cells.shape[1] and cells[PHASE].any():
            cells = self._pairing.complete(cells)
        if cells.shape[1]:
            self._by_cat += np.bincount(cells[CAT], minlength=256)
            self._put("events", event_table(self._src, cells))

    def strings(self, first_id: int, offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> None:
        """See Receiver."""
        if len(offsets) > 1:
            self._put("strings", string_table(self._src, first_id, offsets, data))

    def tally(self) -> tuple[dict[str, int], dict[str, int]]:
        """(kept by category, dropped by reason) of what came through here."""
        kept = {cat.name.lower(): int(self._by_cat[cat]) for cat in Cat if self._by_cat[cat]}
        if self._pairing.paired:
            kept["end"] = self._pairing.paired
        begins, ends = self._pairing.unbalanced()
        dropped = {"unbalanced_begin": begins, "unbalanced_end": ends}
        return kept, {reason: count for reason, count in dropped.items() if count}
