"""What a recording cannot speak for: device time that is neither busy nor idle, marked in `gaps` (method §7.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from traces.rows import first_row
from traces.store import named_sql

# The reason, as `gaps.detail`; the query of its pieces; what has to be there for it to find any.
_KINDS: tuple[tuple[str, str, str], ...] = (
    (
        "launches without kernel records",
        "unrecorded_lost",
        "SELECT 1 FROM launches WHERE run_id = $run_id AND n_kernels = 0 LIMIT 1",
    ),
    (
        "wait for work outside the recording",
        "unrecorded_waits",
        "SELECT 1 FROM host_mark WHERE contains(name, 'StreamWaitEvent') AND $run_id IS NOT NULL LIMIT 1",
    ),
)
_HOLES = ("between two files", "unrecorded_holes", "SELECT 1 FROM stage.file_span WHERE $run_id IS NOT NULL OFFSET 1")


def mark_unrecorded(con: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """Cut gaps so that what the recording cannot speak for has cause 'unrecorded'; the pieces found.

    Totals of steps and devices stay exact: busy + idle + unrecorded = window. A run that was marked before stays as it
    is. Needs temp table `host_mark` (see `host_marks`).
    """
    marked = "SELECT 1 FROM gaps WHERE run_id = ? AND cause = 'unrecorded' LIMIT 1"
    if first_row(con.execute(marked, [run_id])) is not None:
        return 0
    con.execute(
        "CREATE OR REPLACE TEMP TABLE unrecorded_piece "
        "(rank INTEGER, device INTEGER, gap_id BIGINT, start_ns BIGINT, end_ns BIGINT, why VARCHAR)"
    )
    kinds = (*_KINDS, _HOLES) if stage_has(con, "file_span") else _KINDS
    for why, name, condition in kinds:
        if first_row(con.execute(condition, {"run_id": run_id})) is not None:
            query = named_sql(name).rstrip().rstrip(";")
            con.execute(f"INSERT INTO unrecorded_piece SELECT *, '{why}' FROM ({query})", {"run_id": run_id})
    row = first_row(con.execute("SELECT count(*) FROM unrecorded_piece"))
    found = int(row[0]) if row else 0
    if found:
        con.execute("SET VARIABLE run_id = ?", [run_id])
        con.execute(named_sql("unrecorded_split"))
        con.execute(named_sql("step_idle"))
    con.execute("DROP TABLE temp.unrecorded_piece")
    return found


@contextmanager
def host_marks(con: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Temp table `host_mark`: calls and annotations of the host that tell about the recording itself."""
    if stage_has(con, "events"):
        con.execute(f"CREATE OR REPLACE TEMP TABLE host_mark AS {named_sql('host_marks')}")
    else:
        con.execute(f"CREATE OR REPLACE TEMP TABLE host_mark AS {named_sql('host_marks_stored')}", {"run_id": run_id})
    try:
        yield
    finally:
        con.execute("DROP TABLE temp.host_mark")


def stage_has(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether the staging database is attached and has this table."""
    found = first_row(
        con.execute("SELECT 1 FROM duckdb_tables() WHERE database_name = 'stage' AND table_name = ?", [table])
    )
    return found is not None
