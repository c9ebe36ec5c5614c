"""One pass over the activities of each device in order of time: busy parts, gaps, and idle time of steps.

`stage.timeline` (link_window.sql) comes in batches of columns; what goes on from one batch to the next is how far the
device's busy time has reached, whose activity reached it, and the idle time so far. So memory is that of a batch, and
nothing is sorted twice. Times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

BATCH_ROWS = 122_880
NO_STEP = 2**63 - 1  # `step_order` of activities without a step
MARK = 0  # `kernel_id` of the ends of a window

_Column = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class _Reached:
    """Where the sweep stands on a device."""

    place: tuple[int, int]  # (rank, device)
    end_ns: int  # latest end so far
    step: int  # step of the activity that has it
    last_step: int  # step of the activity before
    idle_ns: int = 0  # gaps so far


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swept:
    """What came of the rows of one device in a batch."""

    busy_ns: _Column  # per row
    is_gap: _Mask  # per row: a gap ends where it begins
    gap_start_ns: _Column  # per gap
    gap_step: _Column  # per gap: step of the activity before it
    idle_ns: _Column  # per row: gaps up to its beginning


class Sweep:
    """Fills `gaps`, `stage.part` and `stage.step_gap`; `in_turn` says whether the parts hold.

    They do where steps follow each other on each device. Where they overlap, link_busy.sql divides the time.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        self.in_turn = True
        self.activities = 0
        self._con = con
        self._run_id = run_id
        self._gaps = 0
        self._reached: _Reached | None = None

    def run(self) -> None:
        """Sweep over all devices."""
        # A result read as a stream comes in the order in which threads finish, hence pieces by row number.
        query = "SELECT * FROM stage.timeline WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        first = 0
        while rows := self._con.sql(query, params=[first, first + BATCH_ROWS - 1]).to_arrow_table():
            self._take(rows)
            first += BATCH_ROWS

    def _take(self, rows: pa.Table) -> None:
        rank, device, step, start, end = (_numbers(rows, name) for name in ("rank", "device", "step_order", "s", "e"))
        kernel = _numbers(rows, "kernel_id")
        is_mark = kernel == MARK
        cuts = np.flatnonzero((np.diff(rank) != 0) | (np.diff(device) != 0)) + 1
        for first, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rank)], strict=True):
            part = slice(first, stop)
            place = int(rank[first]), int(device[first])
            swept = self._sweep(place, step[part], start[part], end[part], is_mark[part])
            self._store_gaps(place, swept, step[part], start[part])
            self._store_idle(place, swept, step[part], is_mark[part])
            real = ~is_mark[part]
            self.activities += int(np.count_nonzero(real))
            parts = {"kernel_id": pa.array(kernel[part][real]), "busy_ns": pa.array(swept.busy_ns[real])}
            self._append("stage.part", {}, parts)

    def _sweep(self, place: tuple[int, int], step: _Column, start: _Column, end: _Column, is_mark: _Mask) -> _Swept:
        state = self._reached
        if state is None or state.place != place:
            opening = int(start[0])  # the mark at the window's start
            state = _Reached(place=place, end_ns=opening, step=NO_STEP, last_step=-1)
        if np.any(np.diff(start) < 0):
            raise AssertionError("the timeline is not in order")
        ends = np.maximum.accumulate(np.concatenate(([state.end_ns], end)))
        before = ends[:-1]
        record = np.maximum.accumulate(np.where(end > before, np.arange(1, len(end) + 1), 0))
        holder = np.concatenate(([state.step], step))[np.concatenate(([0], record[:-1]))]
        is_gap = start > before
        idle = state.idle_ns + np.cumsum(np.where(is_gap, start - before, 0))
        real = ~is_mark
        turns = np.concatenate(([state.last_step], step[real]))
        changed = np.diff(turns) != 0
        self.in_turn &= bool(np.all(~changed | ((np.diff(turns) > 0) & (start[real] >= before[real]))))
        self._reached = _Reached(
            place=place, end_ns=int(ends[-1]), step=int(np.concatenate(([state.step], step))[record[-1]]),
            last_step=int(turns[-1]), idle_ns=int(idle[-1]),
        )  # fmt: skip
        return _Swept(
            busy_ns=np.maximum(end - np.maximum(start, before), 0), is_gap=is_gap, gap_start_ns=before[is_gap],
            gap_step=holder[is_gap], idle_ns=idle,
        )  # fmt: skip

    def _store_gaps(self, place: tuple[int, int], swept: _Swept, step: _Column, start: _Column) -> None:
        count = len(swept.gap_start_ns)
        if not count:
            return
        numbers = np.arange(self._gaps + 1, self._gaps + count + 1)
        self._gaps += count
        columns = {
            "gap_id": pa.array(numbers), "start_ns": pa.array(swept.gap_start_ns),
            "dur_ns": pa.array(start[swept.is_gap] - swept.gap_start_ns),
            "step_before": _steps(swept.gap_step), "step_after": _steps(step[swept.is_gap]),
        }  # fmt: skip
        self._append("gaps", {"run_id": self._run_id, **_of(place)}, columns)

    def _store_idle(self, place: tuple[int, int], swept: _Swept, step: _Column, is_mark: _Mask) -> None:
        """Idle time at the first and the last activity of each run of activities of one step."""
        step, idle = step[~is_mark], swept.idle_ns[~is_mark]
        if not len(step):
            return
        first = np.flatnonzero(np.concatenate(([True], np.diff(step) != 0)))
        last = np.concatenate((first[1:], [len(step)])) - 1
        known = step[first] != NO_STEP
        columns = {
            "step_id": pa.array(step[first][known]), "low_ns": pa.array(idle[first][known]),
            "high_ns": pa.array(idle[last][known]),
        }  # fmt: skip
        self._append("stage.step_gap", _of(place), columns)

    def _append(self, table: str, constants: dict[str, int | str], columns: dict[str, pa.Array]) -> None:
        """Rows of `columns`, each with the same `constants`."""
        names = ", ".join([*constants, *columns])
        values = ", ".join([*("?" for _ in constants), *columns])
        self._con.register("swept", pa.table(columns))
        try:
            self._con.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM swept", list(constants.values()))
        finally:
            self._con.unregister("swept")


def _of(place: tuple[int, int]) -> dict[str, int | str]:
    return {"rank": place[0], "device": place[1]}


def _numbers(rows: pa.Table, name: str) -> _Column:
    column: _Column = rows[name].to_numpy().astype(np.int64, copy=False)
    return column


def _steps(step: _Column) -> pa.Array:
    """Steps with NULL for none."""
    return pa.array(step, mask=step == NO_STEP)
