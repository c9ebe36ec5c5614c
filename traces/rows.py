"""Single rows of a DuckDB result."""

from __future__ import annotations

from typing import Any

import duckdb


def first_row(result: duckdb.DuckDBPyConnection) -> tuple[Any, ...] | None:
    """The first row, or None. Reads the result to its end: one left open would block the connection's next statement."""
    rows: list[tuple[Any, ...]] = result.fetchall()
    return rows[0] if rows else None
