"""Begin and end events made into complete ones.

An end closes the innermost open begin of its thread that has its name (any name where it states none) and does not
start after it. An end that comes before its begin in the file, as in files that are not in order of time, waits for
it. What finds no partner is counted, not guessed. Kineto writes complete events only, so this is the rare path: plain
Python over the rows that need it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

import numpy as np

from traces.readers.kineto_json.rows import DUR, N_COLUMNS, NAME, NULL, PH_BEGIN, PH_COMPLETE, PHASE, THREAD, TS, Cells

SEARCH_DEPTH = 4096  # how far down a stack a partner is looked for: bounds the time on unbalanced files

_Row = list[int]


class Pairing:
    """Carries open begins and waiting ends from batch to batch."""

    def __init__(self) -> None:
        self._open: dict[int, list[_Row]] = defaultdict(list)
        self._waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (ts, name)
        self.paired = 0

    def complete(self, cells: Cells) -> Cells:
        """The rows of `cells` that are complete, and those that became so."""
        whole = cells[PHASE] == PH_COMPLETE
        done = [row for row in map(self._take, cells[:, ~whole].T.tolist()) if row is not None]
        kept = cells[:, whole]
        if not done:
            return kept
        self.paired += len(done)
        return np.concatenate([kept, np.array(done, dtype=np.int64).reshape(-1, N_COLUMNS).T], axis=1)

    def unbalanced(self) -> tuple[int, int]:
        """(begins without an end, ends without a begin) so far."""
        return sum(map(len, self._open.values())), sum(map(len, self._waiting.values()))

    def _take(self, row: _Row) -> _Row | None:
        return self._begin(row) if row[PHASE] == PH_BEGIN else self._end(row)

    def _begin(self, row: _Row) -> _Row | None:
        waiting = self._waiting[row[THREAD]]
        for index in islice(range(len(waiting) - 1, -1, -1), SEARCH_DEPTH):
            ts, name = waiting[index]
            if _fits(row, ts, name):
                del waiting[index]
                return _closed(row, ts)
        self._open[row[THREAD]].append(row)
        return None

    def _end(self, row: _Row) -> _Row | None:
        stack = self._open[row[THREAD]]
        for index in islice(range(len(stack) - 1, -1, -1), SEARCH_DEPTH):
            if _fits(stack[index], row[TS], row[NAME]):
                return _closed(stack.pop(index), row[TS])
        self._waiting[row[THREAD]].append((row[TS], row[NAME]))
        return None


def _fits(begin: _Row, end_ts: int, end_name: int) -> bool:
    if NULL in (begin[TS], end_ts) or end_ts < begin[TS]:
        return False
    return end_name in (0, begin[NAME])


def _closed(begin: _Row, end_ts: int) -> _Row:
    begin[DUR] = end_ts - begin[TS]
    begin[PHASE] = PH_COMPLETE
    return begin
