"""Statements that ask for more memory where they need it."""

from __future__ import annotations

import duckdb

from traces.rows import first_row
from traces.store import named_sql

MOST_MEMORY_BYTES = 16 * 2**30  # what may be asked for in the end


def run_sql(con: duckdb.DuckDBPyConnection, *names: str, package: str = "traces") -> None:
    """Run every statement of `sql/NAME.sql` of a package of ours, as `execute` does."""
    for name in names:
        for statement in con.extract_statements(named_sql(name, package)):
            execute(con, statement)


def execute(con: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    """Run a statement; where the memory limit is too small for it, double the limit and run it again.

    A window over one device is held in memory as a whole, so the least limit that suffices depends on the recording; a
    failed statement leaves nothing behind.
    """
    while True:
        try:
            con.execute(statement)
        except duckdb.OutOfMemoryException:
            row = first_row(con.execute("SELECT current_setting('memory_limit')"))
            limit = _bytes_of(str(row[0])) if row else 0
            if not 0 < limit < MOST_MEMORY_BYTES:
                raise
            con.execute(f"SET memory_limit = '{2 * limit}B'")
        else:
            return


def _bytes_of(setting: str) -> int:
    """Bytes of DuckDB's own '152.5 MiB'."""
    number, unit = setting.split()
    return int(float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit.replace("bytes", "B")))
