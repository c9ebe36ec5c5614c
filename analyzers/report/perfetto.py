"""A time line as a trace that Perfetto and chrome://tracing open: JSON, written piece by piece.

What those viewers ask for: slices (`X`) of one thread follow or contain each other, hence lanes; a parent comes before what
it contains; process and thread ids are small positive numbers, with names (`M`); counters (`C`) belong to a process. Times are
decimal µs with three digits, relative to `baseTimeNanoseconds`: exact also where a reader takes them for floating-point numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analyzers.export_trace import Timeline, chosen
from analyzers.report.perfetto_lanes import LEFT_OUT, Lanes
from traces.printable import printable

_Column = npt.NDArray[np.int64]
_WRITTEN_ROWS = 20_000  # as text at once
_NAME_CHARS = 300  # of processes, threads and counters; a slice's name is written whole
_PROCESSES = ("engine", "rank", "requests")  # from above, by the beginning of their names
_THREADS = ("requests", "host", "device", "phase", "bound", "idle")  # from above; streams come after


@dataclass(slots=True, kw_only=True)
class Written:
    """What a trace holds. `left_out`: slices whose times contradict the order of their track."""

    slices: int = 0
    counters: int = 0
    left_out: int = 0


class TraceWriter:
    """Writes one trace to a binary stream."""

    def __init__(self, timeline: Timeline, stream: IO[bytes]) -> None:
        self.written = Written()
        self._timeline = timeline
        self._stream = stream
        self._first = True
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str, int], int] = {}
        self._lanes: dict[tuple[str, str], Lanes] = {}

    def write(self, *, overlay: bool = False) -> Written:
        """Everything; `overlay` leaves out the recording's own activities."""
        line = self._timeline
        facts = {"run_id": line.run_id, "name": line.name, "clock": line.clock, "written_by": "stepscope export"}
        head = {"baseTimeNanoseconds": line.base_ns, "displayTimeUnit": "ms", "otherData": facts}
        self._stream.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [')
        for source in chosen(overlay=overlay):
            for rows in line.pieces(source):
                if source.counter:
                    self._write_counters(rows)
                else:
                    self._write_slices(rows)
        self._stream.write(b"\n]}\n")
        return self.written

    def _write_slices(self, rows: pa.Table) -> None:
        start, end = (_numbers(rows[name]) for name in ("start_ns", "end_ns"))
        nested = rows["nested"].to_numpy()
        pids, tids = (np.zeros(len(start), dtype=np.int64) for _ in range(2))
        for (process, track), mine in _groups(rows, "process", "track"):
            lanes = self._placed((process, track), start[mine], end[mine], nested[mine])
            pids[mine] = self._pid(process)
            for lane in np.unique(lanes[lanes != LEFT_OUT]).tolist():
                tids[mine[lanes == lane]] = self._tid(process, track, lane)
        kept = np.flatnonzero(tids)
        self.written.slices += len(kept)
        self.written.left_out += len(start) - len(kept)
        for first in range(0, len(kept), _WRITTEN_ROWS):
            some = kept[first : first + _WRITTEN_ROWS]
            text = rows.select(["cat", "name", "args"]).take(some)
            self._write_lines(
                '{"ph": "X", "cat": "', text["cat"], '", "pid": ', pids[some], ', "tid": ', tids[some], ', "ts": ',
                _us(start[some] - self._timeline.base_ns), ', "dur": ', _us(end[some] - start[some]), ', "name": ', text["name"],
                ', "args": ', text["args"], "}",
            )  # fmt: skip

    def _placed(self, key: tuple[str, str], start: _Column, end: _Column, nested: npt.NDArray[np.bool_]) -> _Column:
        """Lanes of a track's slices; what lies in another one is in its lane."""
        outer = np.flatnonzero(~nested)
        lanes = self._lanes.setdefault(key, Lanes()).place(start[outer], end[outer])
        return lanes[np.cumsum(~nested) - 1] if len(outer) else np.full(len(start), LEFT_OUT)

    def _write_counters(self, rows: pa.Table) -> None:
        pids = np.zeros(rows.num_rows, dtype=np.int64)
        for (process,), mine in _groups(rows, "process"):
            pids[mine] = self._pid(process)
        at = _us(_numbers(rows["start_ns"]) - self._timeline.base_ns)
        self.written.counters += rows.num_rows
        self._write_lines(
            '{"ph": "C", "pid": ', pids, ', "ts": ', at, ', "name": "', rows["track"], '", "args": {"', rows["unit"], '": ',
            rows["value"], "}}",
        )  # fmt: skip

    def _pid(self, process: str) -> int:
        if process not in self._processes:
            pid = self._processes[process] = len(self._processes) + 1
            device = self._timeline.devices.get(process)
            place = next((at for at, word in enumerate(_PROCESSES) if process.startswith(word)), len(_PROCESSES))
            self._write_fact("process_name", pid, 0, name=process)
            self._write_fact("process_sort_index", pid, 0, sort_index=place)
            if device:
                self._write_fact("process_labels", pid, 0, labels=device)
        return self._processes[process]

    def _tid(self, process: str, track: str, lane: int) -> int:
        """A thread per lane: viewers ask of threads that their slices nest."""
        if (process, track, lane) not in self._threads:
            tid = self._threads[process, track, lane] = len(self._threads) + 1
            place = _THREADS.index(track) if track in _THREADS else len(_THREADS)
            pid = self._pid(process)
            self._write_fact("thread_name", pid, tid, name=f"{track} ({lane + 1})" if lane else track)
            self._write_fact("thread_sort_index", pid, tid, sort_index=place * 100_000 + min(lane, 99_999))
        return self._threads[process, track, lane]

    def _write_fact(self, what: str, pid: int, tid: int, **values: Any) -> None:
        shown = {
            key: printable(value)[:_NAME_CHARS] if isinstance(value, str) else value for key, value in values.items()
        }
        self._put(json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": shown}).encode())

    def _write_lines(self, *parts: str | _Column | pa.ChunkedArray) -> None:
        """Rows of text, put together column by column; strings are the same in every row."""
        columns = [_fixed(part) if isinstance(part, str) else _text(part) for part in parts]
        lines = pc.binary_join_element_wise(_fixed(",\n"), *columns, _fixed(""))
        for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
            _, offsets, data = chunk.buffers()
            ends = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            self._put(memoryview(data)[ends[0] + 2 : ends[-1]])

    def _put(self, text: bytes | memoryview) -> None:
        self._stream.write(b"\n" if self._first else b",\n")
        self._stream.write(text)
        self._first = False


def _groups(rows: pa.Table, *names: str) -> list[tuple[tuple[str, ...], _Column]]:
    """Rows by the values of text columns: the values, and the places of their rows in order."""
    codes = [rows[name].combine_chunks().dictionary_encode() for name in names]
    keys = np.zeros(rows.num_rows, dtype=np.int64)
    for column in codes:
        keys = keys * len(column.dictionary) + column.indices.to_numpy().astype(np.int64)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    found = []
    for mine in np.split(order, cuts):
        values = tuple(column.dictionary[column.indices[int(mine[0])].as_py()].as_py() for column in codes)
        found.append((values, mine))
    return found


def _numbers(column: pa.ChunkedArray) -> _Column:
    numbers: _Column = column.to_numpy()
    return numbers


def _fixed(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _text(column: _Column | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.cast(pa.array(column) if isinstance(column, np.ndarray) else column, pa.large_string())


def _us(ns: _Column) -> pa.Array:
    """Decimal µs of ns, exactly."""
    size = np.abs(ns)
    whole, rest = (pc.cast(pa.array(part), pa.string()) for part in (size // 1000, size % 1000))
    sign = pc.if_else(pa.array(ns < 0), "-", "")
    return pc.cast(pc.binary_join_element_wise(sign, whole, ".", pc.utf8_lpad(rest, 3, "0"), ""), pa.large_string())
