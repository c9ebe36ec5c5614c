"""The tables of the data contract (schema.sql), and whether a database has them as this version reads them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import duckdb

from traces.damage import AGAIN
from traces.errors import NothingToAnalyze, UnreadableInput, UsageProblem

SCHEMA_VERSION = 1
_MAKE = "make it with `stepscope ingest`"


def schema_sql() -> str:
    """Text of schema.sql."""
    return resources.files("traces").joinpath("schema.sql").read_text(encoding="utf-8")


def table_names() -> list[str]:
    """Names of the tables in schema.sql, in its order."""
    return list(dict.fromkeys(table for table, _ in columns()))


def columns() -> list[tuple[str, str]]:
    """(table, column) of everything in schema.sql, in its order."""
    return list(_types())


@cache
def _types() -> dict[tuple[str, str], str]:
    """Type of each (table, column) of schema.sql."""
    found: dict[tuple[str, str], str] = {}
    table = ""
    for line in schema_sql().splitlines():
        if line.startswith("CREATE TABLE "):
            table = line.split()[2]
        elif line.startswith("    "):
            column, kind = line.split()[:2]
            found[table, column] = kind.rstrip(",")
    return found


def select_run(connection: duckdb.DuckDBPyConnection, path: Path, run_id: str | None) -> str:
    """The run that is meant: `run_id`, or the newest. Raises UnreadableInput where the database is none of ours, of a newer
    version or edited, UsageProblem for an unknown run, NothingToAnalyze where there is none."""
    stored = _stored_types(connection)
    if not any(table == "runs" for table, _ in stored):
        raise UnreadableInput(f"{path} has no table `runs`", hint=_MAKE)
    if ("runs", "run_id") not in stored or ("runs", "created_ns") not in stored:  # somebody else's table of that name
        raise UnreadableInput(f"{path} is not a run database of stepscope", hint=_MAKE)
    _refuse_newer(connection, path, stored)
    _refuse_other_columns(path, stored)
    rows = connection.execute("SELECT run_id FROM runs ORDER BY created_ns DESC, rowid DESC").fetchall()
    known = [row[0] for row in rows]
    if not known:
        raise NothingToAnalyze(f"{path} holds no run", hint="add one with `stepscope ingest`")
    if None in known:
        raise UnreadableInput(f"{path} holds a run without an id: it was edited", hint=AGAIN)
    if run_id is None:
        return str(known[0])
    if run_id not in known:
        raise UsageProblem(f"{path} has no run {run_id}", hint=f"known: {', '.join(known[:10])}")
    return run_id


def _stored_types(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], str]:
    """As `_types`, of the tables in a database. Views are none: one may read other files."""
    rows = connection.execute(
        "SELECT c.table_name, c.column_name, c.data_type FROM duckdb_columns() AS c "
        "SEMI JOIN duckdb_tables() AS t USING (database_name, schema_name, table_name) "
        "WHERE c.schema_name = 'main' AND c.database_name = current_database() AND NOT c.internal"
    ).fetchall()
    return {(table, column): kind for table, column, kind in rows}


def _refuse_newer(connection: duckdb.DuckDBPyConnection, path: Path, stored: dict[tuple[str, str], str]) -> None:
    """What a newer version wrote may mean something else under the same name."""
    if stored.get(("runs", "schema_version")) != "INTEGER":
        return
    ((newest,),) = connection.execute("SELECT max(schema_version) FROM runs").fetchall()
    if newest is not None and newest > SCHEMA_VERSION:
        raise UnreadableInput(
            f"{path} was made by a newer stepscope (schema {newest}; this one reads {SCHEMA_VERSION})",
            hint="update stepscope, or ingest the recording again with this one",
        )


def _refuse_other_columns(path: Path, stored: dict[tuple[str, str], str]) -> None:
    expected = _types()
    missing = [f"{table}.{column}" for table, column in expected if (table, column) not in stored]
    if missing:
        raise UnreadableInput(
            f"{path} lacks {_some(missing)}: another version of stepscope wrote it, or it was edited", hint=AGAIN
        )
    other = [
        f"{table}.{column} as {stored[table, column]}, not {kind}"
        for (table, column), kind in expected.items() if stored[table, column] != kind
    ]  # fmt: skip
    if other:
        raise UnreadableInput(
            f"{path} has {_some(other)}: another version of stepscope wrote it, or it was edited", hint=AGAIN
        )


def _some(items: list[str]) -> str:
    return f"{', '.join(items[:3])}{' and more' if len(items) > 3 else ''}"
