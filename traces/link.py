"""Structure at ingest: staging rows → activities, launches, steps, requests of the data contract, by SQL.

Each `sql/link_*.sql` answers one question and says so in its header. Python decides which of them apply and parses the
few distinct step labels; it never loops over events. Busy parts and gaps come of one pass over columns (sweep.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import duckdb
import pyarrow as pa

from traces import health, labels
from traces.patience import run_sql
from traces.readers.staging import LOG_TABLES
from traces.rows import first_row
from traces.store import named_sql
from traces.sweep import Sweep

_SQL_TYPES = {"uint32": "UINTEGER", "int64": "BIGINT", "string": "VARCHAR", "double": "DOUBLE", "bool": "BOOLEAN",
              "list<item: uint64>": "UBIGINT[]", "list<item: string>": "VARCHAR[]", "list<item: int64>": "BIGINT[]"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """What linking knows beyond the staged rows. Window in ns on the run's clock; None: take it from the activities."""

    run_id: str
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    passes: tuple[tuple[str, int], ...] = ()  # (name, start_ns)


def create_stage(con: duckdb.DuckDBPyConnection) -> None:
    """Create the staging tables in the attached database `stage`."""
    con.execute(named_sql("stage_tables"))
    for table, schema in LOG_TABLES.items():
        columns = ", ".join(f'"{field.name}" {_SQL_TYPES[str(field.type)]}' for field in schema)
        con.execute(f"CREATE TABLE stage.{table} ({columns})")


def link(con: duckdb.DuckDBPyConnection, context: LinkContext) -> None:
    """Fill kernels, launches, host_events, steps, gaps, devices, requests and the ledger tables of `context.run_id`."""
    _set_variables(con, context)
    _parse_labels(con)
    cpu = _is_cpu_recording(con)
    run_sql(con, "link_cpu_activities" if cpu else "link_activities")
    health.quarantine(con)
    run_sql(con, "link_launches", "link_labels")
    _merge_labels(con)
    run_sql(con, "link_steps_python", "link_steps_sampler", "link_steps_period")
    run_sql(con, "link_steps", "link_ledger")
    if not _count(con, "stage.step"):
        run_sql(con, "link_ledger_only")
    run_sql(con, "link_kernels")
    with _beside(con, "store_host", context.run_id):  # the sweep leaves a core to it
        outside = _sweep(con, context.run_id)
    run_sql(con, "store_kernels", "link_step_rows", "link_devices")
    if outside:
        run_sql(con, "step_idle")
    run_sql(con, "link_ledger_phases", "link_requests", "link_prompts", "link_telemetry")


@contextmanager
def _beside(con: duckdb.DuckDBPyConnection, name: str, run_id: str) -> Iterator[None]:
    """Run `sql/NAME.sql` on a connection of its own during the block, which must not write the same tables."""
    other = con.cursor()
    other.execute("SET VARIABLE run_id = ?", [run_id])
    with other, ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_sql, other, name)
        try:
            yield
        except BaseException:
            other.interrupt()
            raise
        done.result()


def _sweep(con: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Gaps and busy parts; whether activities lie outside the windows, so that spans of steps go beyond what was swept."""
    sweep = Sweep(con, run_id)
    row = first_row(con.execute("SELECT current_setting('preserve_insertion_order')"))
    con.execute("SET preserve_insertion_order = true")  # the timeline is stored and read in order
    run_sql(con, "link_window")
    sweep.run()
    con.execute(f"SET preserve_insertion_order = {str(bool(row and row[0])).lower()}")
    if not sweep.in_turn:
        run_sql(con, "link_busy")
    outside = _count(con, "stage.activity WHERE valid") > sweep.activities
    if outside:
        con.execute("DELETE FROM stage.step_gap")
    return outside


def _count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    row = first_row(con.execute(f"SELECT count(*) FROM {table}"))
    return int(row[0]) if row else 0


def _set_variables(con: duckdb.DuckDBPyConnection, context: LinkContext) -> None:
    con.execute("SET VARIABLE run_id = ?", [context.run_id])
    con.execute("SET VARIABLE window_start = ?::BIGINT", [context.window_start_ns])
    con.execute("SET VARIABLE window_end = ?::BIGINT", [context.window_end_ns])
    con.execute("CREATE TABLE stage.passes (pass VARCHAR, start_ns BIGINT)")
    if context.passes:
        con.executemany("INSERT INTO stage.passes VALUES (?, ?)", [list(item) for item in context.passes])


def _parse_labels(con: duckdb.DuckDBPyConnection) -> None:
    """stage.label_name: which names are step labels; stage.label_form: form and detail of each distinct one."""
    names = con.sql(
        "SELECT DISTINCT t.src, t.id AS name, t.text AS label FROM stage.events AS e "
        "JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name WHERE e.cat = 13"
    ).to_arrow_table()
    texts = dict.fromkeys(names["label"].to_pylist())
    parsed = [(text, label) for text in texts if (label := labels.parse(text)) is not None]
    forms: dict[str, list[object]] = {
        "label": [text for text, _ in parsed],
        "form": [label.form for _, label in parsed],
        "detail": [label.known_fields for _, label in parsed],
    }
    schema = pa.schema([("label", pa.string()), ("form", pa.string()), ("detail", pa.int64())])
    _store_table(con, "stage.label_form", pa.table(forms, schema=schema))
    _store_table(con, "stage.label_name", names, "SEMI JOIN stage.label_form USING (label)")


def _merge_labels(con: duckdb.DuckDBPyConnection) -> None:
    """stage.label: what the labels of a step say together; one row per distinct set of texts."""
    sets = [
        row[0] for row in con.execute("SELECT DISTINCT labels FROM stage.label_event WHERE source = 'label'").fetchall()
    ]
    merged = [
        reduce(labels.prefer, [label for text in texts if (label := labels.parse(text)) is not None]) for texts in sets
    ]
    columns = labels.label_columns(merged) | {"labels": sets}
    lists = {"caveats", "labels"}
    types = {name: pa.string() if name in labels.TEXT_FIELDS else pa.int64() for name in columns.keys() - lists}
    types |= dict.fromkeys(lists, pa.list_(pa.string()))
    _store_table(con, "stage.label", pa.table(columns, schema=pa.schema([(name, types[name]) for name in columns])))


def _store_table(con: duckdb.DuckDBPyConnection, table: str, data: pa.Table, condition: str = "") -> None:
    con.register("rows_to_store", data)
    con.execute(f"CREATE TABLE {table} AS SELECT * FROM rows_to_store {condition}")
    con.unregister("rows_to_store")


def _is_cpu_recording(con: duckdb.DuckDBPyConnection) -> bool:
    """No device, no device activity and no device call, but operators: the compute thread is the device."""
    row = first_row(
        con.execute(
            "SELECT count(*) FILTER (WHERE e.cat BETWEEN 1 AND 4 OR e.cat IN (11, 12)), count(*) FILTER (WHERE e.cat = 10) "
            "FROM stage.events AS e JOIN stage.sources AS s USING (src) WHERE s.role = 'trace'"
        )
    )
    devices = first_row(
        con.execute(
            "SELECT count(*) FROM stage.sources WHERE json_array_length(meta -> 'deviceProperties') > 0 AND role = 'trace'"
        )
    )
    return bool(row and devices and row[0] == 0 and row[1] > 0 and devices[0] == 0)
