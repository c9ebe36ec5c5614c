"""Everything that is derived from a linked run, in order. The one module of analyzers that knows the others."""

from __future__ import annotations

import duckdb

from analyzers import kernels
from traces.store import TraceStore, named_sql, writing


def analyze(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill the derived columns and tables of run `run_id`; what an earlier analysis wrote is replaced."""
    con.execute("SET VARIABLE run_id = ?", [run_id])
    kernels.apply_categories(con, run_id)
    con.execute(named_sql("phases_whole", "analyzers"))


def analyze_run(name: str) -> str:
    """Analyze the run that `PATH[#run_id]` names again, atomically; returns `PATH#run_id`."""
    with TraceStore.open(name) as store:
        path, run_id = store.path, store.run_id
    with writing(path) as con:
        analyze(con, run_id)
    return f"{path}#{run_id}"
