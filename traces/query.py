"""`query` and `info`: rows of a database as JSON, CSV or a plain table, streamed."""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal
from typing import Any, TextIO

import duckdb

from traces.damage import is_damage
from traces.errors import UsageProblem
from traces.printable import for_stream, printable
from traces.store import TraceStore, table_names

INFO_VERSION = 1
_BATCH_ROWS = 10_000
_TABLE_ROWS = 200
_CELL_CHARS = 60


def run_query(run: str, sql: str, form: str, stream: TextIO) -> None:
    """Run `sql` and write its rows as `form` ('json' | 'csv' | 'table').

    `$run_id` in the statement is bound to the chosen run. Raises UsageProblem with the database's own words where the
    statement is wrong.
    """
    with TraceStore.open(run) as store:
        try:
            parameters = {"run_id": store.run_id} if "$run_id" in sql else None
            result = store.connection.execute(sql, parameters)
            if result is None:  # no statement in it
                raise UsageProblem("the query is empty", hint="for example: select * from steps")
            names = [item[0] for item in result.description or []]
            {"json": _write_json, "csv": _write_csv, "table": _write_table}[form](result, names, stream)
        except duckdb.Error as error:
            if is_damage(error):  # not the statement's fault: the store says what it is
                raise
            raise UsageProblem(
                f"the query failed: {str(error).splitlines()[0]}", hint=f"tables: {', '.join(table_names())}"
            ) from error


def plain(value: Any) -> Any:
    """A database value as JSON can hold it: not finite → None, decimals → numbers, the rest as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def _write_json(result: duckdb.DuckDBPyConnection, names: list[str], stream: TextIO) -> None:
    stream.write("[")
    separator = "\n"
    while rows := result.fetchmany(_BATCH_ROWS):
        for row in rows:
            stream.write(separator + json.dumps(dict(zip(names, map(plain, row), strict=True))))
            separator = ",\n"
    stream.write("\n]\n")


def _write_csv(result: duckdb.DuckDBPyConnection, names: list[str], stream: TextIO) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    stream.write(for_stream(buffer.getvalue(), stream))
    while rows := result.fetchmany(_BATCH_ROWS):
        buffer.seek(0)
        buffer.truncate()
        writer.writerows(["" if value is None else plain(value) for value in row] for row in rows)
        stream.write(for_stream(buffer.getvalue(), stream))


def _write_table(result: duckdb.DuckDBPyConnection, names: list[str], stream: TextIO) -> None:
    rows = result.fetchmany(_TABLE_ROWS + 1)
    cells = [[_cell(value) for value in row] for row in rows[:_TABLE_ROWS]]
    names = [_cell(name) for name in names]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    stream.write("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip() + "\n")
    for row in cells:
        stream.write("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")
    if len(rows) > _TABLE_ROWS:
        stream.write(f"(more than {_TABLE_ROWS} rows; --json or --csv prints all)\n")


def _counted(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _cell(value: Any) -> str:
    text = "" if value is None else printable(str(plain(value)))
    return text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"


def describe_database(run: str, stream: TextIO, *, as_json: bool) -> None:
    """Runs, files and row counts of a database."""
    with TraceStore.open(run) as store:
        runs = store.query(
            "SELECT run_id, name, source, engine, engine_version, device_kind, model, created_ns, "
            "(window_end_ns - window_start_ns) / 1e9 AS window_s FROM runs ORDER BY created_ns"
        ).to_dicts()
        files = store.query(
            "SELECT name, role, format, rank, bytes, events, truncated FROM sources WHERE run_id = ? ORDER BY src",
            [store.run_id],
        ).to_dicts()
        counts = {
            name: store.query(f"SELECT count(*) AS n FROM {name} WHERE run_id = ?", [store.run_id])["n"][0]
            for name in table_names()
        }
        if as_json:
            head = {"version": INFO_VERSION, "path": str(store.path), "run_id": store.run_id}
            data = {**head, "runs": runs, "files": files, "rows": counts}
            stream.write(json.dumps(data, indent=2, default=str) + "\n")
            return
    stream.write(f"{store.path}\n")
    for item in runs:
        mark = "*" if item["run_id"] == store.run_id else " "
        window = f"{item['window_s']:.3f} s" if item["window_s"] is not None else "no window"
        facts = [item["source"], item["engine"], item["engine_version"], item["device_kind"], item["model"], window]
        told = [item["run_id"], *(fact for fact in facts if fact)]
        stream.write(f"{mark} " + "  ".join(printable(str(fact)) for fact in told) + "\n")
    stream.write("files\n")
    for item in files:
        cut = f"  truncated: {printable(item['truncated'])}" if item["truncated"] else ""
        rank = f"rank {item['rank']}" if item["rank"] is not None else ""
        size = f"{_counted(item['bytes'])} bytes  {_counted(item['events'])} events"
        stream.write(f"  {printable(item['name'])}  {printable(str(item['role']))}  {rank}  {size}{cut}\n")
    stream.write("rows\n")
    for name, count in counts.items():
        if count:
            stream.write(f"  {name:16} {count:>12,}\n")
