"""The sink of an ingest: Arrow tables from reader threads into the staging database, one writer at a time."""

from __future__ import annotations

import threading

import duckdb
import pyarrow as pa


class StageSink:
    """Appends columns to tables of the attached database `stage`; callable from several threads."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection.cursor()
        self._connection.execute("SET enable_progress_bar = false")  # a setting of each cursor
        self._lock = threading.Lock()
        self._closed = False
        self.rows: dict[str, int] = {}

    def append(self, table: str, data: pa.Table) -> None:
        """Append `data` to `stage.TABLE` by column name. Nothing is held back: memory stays that of one chunk."""
        if data.num_rows == 0:
            return
        columns = ", ".join(f'"{name}"' for name in data.column_names)
        with self._lock:
            if self._closed:
                raise ValueError("the sink is closed")
            self._connection.register("chunk_to_append", data)
            try:
                self._connection.execute(f"INSERT INTO stage.{table} ({columns}) SELECT {columns} FROM chunk_to_append")
            finally:
                self._connection.unregister("chunk_to_append")
            self.rows[table] = self.rows.get(table, 0) + data.num_rows

    def close(self) -> None:
        """Release the cursor, once a running append is done. What a reader's thread appends later is refused."""
        with self._lock:
            self._closed = True
            self._connection.close()
