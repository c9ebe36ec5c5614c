"""The rows of an Nsight Systems export as columns of the staging tables.

DuckDB could read SQLite itself, but only with an extension that it downloads, and stepscope works offline. So rows
come through Python's sqlite3, in batches that are turned into columns at once: at no time is there more than one
batch of Python rows, and no row is looked at one by one.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traces.readers.base import EVENT_COLUMNS, STRING_COLUMNS, ReadOptions, ReadReport, Sink
from traces.readers.nsys_layout import GRAPH, NVTX, SELECTED, STRINGS, Layout, statements

BATCH_ROWS = 40_960  # three of these make one row group of DuckDB
_API_VERSION = re.compile(r"(?:_ptsz|_ptds)?_v\d+$")  # cudaLaunchKernel_v7000 is what Kineto calls cudaLaunchKernel
_LONG_TEXT = 128
_LONGEST_TEXT = 65536
_MOST_TEXTS = 1 << 18

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Reading:
    """One pass over the tables of one export."""

    connection: sqlite3.Connection
    src: int
    sink: Sink
    options: ReadOptions
    report: ReadReport
    ids: dict[str | bytes, int] = field(default_factory=dict)  # text, or its digest where long → string id
    of_string: dict[int, int] = field(default_factory=dict)  # StringIds.id → string id
    fresh: list[tuple[int, str]] = field(default_factory=list)
    issued: int = 0

    def run(self, layout: Layout) -> None:
        plan = statements(layout)
        share_of = self._rows_expected([table for table, _ in plan])
        unreadable: list[str] = []
        for table, statement in plan:
            try:
                for rows in self._batches(statement):
                    self._take(rows, table, share_of)
            except sqlite3.DatabaseError as error:  # what was read of a damaged file stays
                unreadable.append(f"{table}: {error}")
        if unreadable:
            if self.report.events == 0:
                raise sqlite3.DatabaseError("; ".join(unreadable))
            self.report.truncated = "; ".join(unreadable)
        if self.report.kept.get(GRAPH):
            self.report.meta["graph_trace"] = "graph"  # whole graphs; their kernels were not recorded

    def _batches(self, statement: str) -> Iterator[Rows]:
        cursor = self.connection.execute(statement)
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield rows

    def _rows_expected(self, tables: list[str]) -> int:
        """Highest row numbers, which cost nothing to find; only for the progress shown."""
        total = 0
        for table in tables:
            try:
                total += self.connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()[0]
            except sqlite3.DatabaseError:
                continue
        return max(total, 1)

    def _take(self, rows: Rows, table: str, expected: int) -> None:
        columns = dict(zip(SELECTED, zip(*rows, strict=True), strict=True))
        count = len(rows)
        data: dict[str, Any] = {
            key: pa.array(columns[key], pa.int64()) for key in SELECTED if key not in ("name", "shapes")
        }
        data["src"] = pa.array(np.full(count, self.src, np.uint32))
        data["seq"] = pa.array(np.arange(self.report.events, self.report.events + count, dtype=np.int64))
        data["name"] = pa.array(self._string_ids(columns["name"]))
        data["shapes"] = _zero_as_null(self._string_ids(columns["shapes"]))
        for missing in ("ext", "dtypes", "extra"):
            data[missing] = pa.nulls(count, EVENT_COLUMNS.field(missing).type)
        self._flush_strings()
        table_data = pa.table([data[item.name] for item in EVENT_COLUMNS], names=EVENT_COLUMNS.names)
        self.sink.append("events", table_data.cast(EVENT_COLUMNS))
        self.report.events += count
        self.report.kept[table] = self.report.kept.get(table, 0) + count
        if table == NVTX:
            open_ranges = data["dur"].null_count
            self.report.meta["nvtx_without_end"] = self.report.meta.get("nvtx_without_end", 0) + open_ranges
        if self.options.progress is not None:
            done = min(self.report.events / expected, 1.0)
            self.options.progress(int(self.report.bytes_read * done), self.report.events)

    def _string_ids(self, column: tuple[Any, ...]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """String ids of a column of StringIds numbers and texts; 0 for NULL. Each distinct value is looked at once."""
        known = {value: self._string_id(value) for value in set(column)}
        return np.fromiter(map(known.__getitem__, column), np.uint32, len(column))

    def _string_id(self, value: object) -> int:
        if isinstance(value, str):
            return self._intern(value)
        if not isinstance(value, int):
            return 0
        if value not in self.of_string:
            self.of_string[value] = self._intern(self._text_of(value))
        return self.of_string[value]

    def _text_of(self, number: int) -> str | None:
        try:
            row = self.connection.execute(
                f"SELECT substr(value, 1, {_LONGEST_TEXT}) FROM {STRINGS} WHERE id = ?", (number,)
            ).fetchone()
        except sqlite3.OperationalError:  # no such table or column: events stay, without names
            return None
        return None if row is None or not isinstance(row[0], str) else _API_VERSION.sub("", row[0])

    def _intern(self, text: str | None) -> int:
        if not text:
            return 0
        key = text if len(text) < _LONG_TEXT else hashlib.blake2b(text.encode(), digest_size=16).digest()
        number = self.ids.get(key)
        if number is None:
            if len(self.ids) >= _MOST_TEXTS:  # texts that never repeat: memory stays flat, a few are stored twice
                self.ids.clear()
            self.issued += 1
            number = self.ids[key] = self.issued
            self.fresh.append((number, text))
        return number

    def _flush_strings(self) -> None:
        if not self.fresh:
            return
        numbers, texts = zip(*self.fresh, strict=True)
        source = pa.array(np.full(len(numbers), self.src, np.uint32))
        data = pa.table(
            [source, pa.array(numbers, pa.uint32()), pa.array(texts, pa.string())], names=STRING_COLUMNS.names
        )
        self.sink.append("strings", data.cast(STRING_COLUMNS))
        self.fresh.clear()


def _zero_as_null(numbers: np.ndarray[Any, np.dtype[np.uint32]]) -> pa.Array:
    return pa.array(numbers, mask=numbers == 0)
