"""Why a device had nothing to do: every gap cut where its cause changes (method §7), each piece with its evidence."""

from __future__ import annotations

import duckdb

from traces.patience import run_sql
from traces.rows import first_row
from traces.store import named_sql

LATENCY_NS = 15_000  # what a launched activity may take to begin; longer, and it waited for something
BACK_TO_BACK_NS = 1_000_000  # between two launches outside every range: longer, and the thread did something else
MOST_CONTRADICTED = 0.05  # of busy time outside every request: beyond it the request log is not of this recording
BLOCK_GAPS = 10_000  # gaps worked on at a time

_TABLES = ("gap", "engine", "part", "lane", "name", "moment", "range", "mark", "segment", "piece")
_BLOCK = ("idle_ranges", "idle_marks", "idle_segments", "idle_pieces")


def fill(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Give every idle row of `gaps` one cause and its evidence, cutting it where the cause changes.

    Needs categories of kernels. Pieces of an earlier analysis are put together first, so that the result does not depend on
    how often this ran; `unrecorded` rows are left alone, and so are the totals of devices and steps.
    """
    for name, value in (
        ("run_id", run_id), ("idle_latency_ns", LATENCY_NS), ("idle_back_to_back_ns", BACK_TO_BACK_NS), ("idle_block_size", BLOCK_GAPS),
    ):  # fmt: skip
        con.execute(f"SET VARIABLE {name} = ?", [value])
    con.execute(
        "CREATE OR REPLACE TEMP TABLE idle_piece "
        "(gap_id BIGINT, rank INTEGER, device INTEGER, start_ns BIGINT, end_ns BIGINT, cause VARCHAR, detail VARCHAR)"
    )
    run_sql(con, "idle_gaps", "idle_engine", package="analyzers")
    _believe_requests(con, run_id)
    run_sql(con, "idle_next", "idle_names", "idle_moments", package="analyzers")
    con.execute("SET VARIABLE idle_has_forward = EXISTS (FROM idle_moment WHERE forward_ns IS NOT NULL)")
    run_sql(con, "idle_launched", package="analyzers")
    for (block,) in con.execute("SELECT DISTINCT block FROM idle_part ORDER BY block").fetchall():
        con.execute("SET VARIABLE idle_block = ?", [block])
        run_sql(con, *_BLOCK, package="analyzers")
    run_sql(con, "idle_store", package="analyzers")
    for table in _TABLES:
        con.execute(f"DROP TABLE IF EXISTS temp.idle_{table}")


def _believe_requests(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Where the device works while the request log has nothing in the engine, the log is of something else: say so, leave it."""
    con.execute("DELETE FROM health WHERE run_id = ? AND check_id = 'idle_requests'", [run_id])
    row = first_row(con.execute(named_sql("idle_doubt", "analyzers"), {"run_id": run_id}))
    share = float(row[0]) if row else 0.0
    if share <= MOST_CONTRADICTED:
        return
    con.execute("DELETE FROM idle_engine")
    message = (
        f"{100 * share:.1f} % of the device's work lies where the request log has no request in the engine: the log is of "
        "another run, or of some of its clients. Idle time is not divided by requests"
    )
    con.execute(
        "INSERT INTO health (run_id, rank, check_id, status, value, threshold, affects, message) VALUES "
        "(?, NULL, 'idle_requests', 'warning', ?, ?, '[\"gaps.cause\"]', ?)",
        [run_id, share, MOST_CONTRADICTED, message],
    )
