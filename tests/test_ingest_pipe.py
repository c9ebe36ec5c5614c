"""A trace that comes through a pipe."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from trace_builder import TraceBuilder

from traces.ingest import IngestOptions, ingest
from traces.store import TraceStore


def test_a_pipe_gives_the_rows_of_the_file(tmp_path: Path) -> None:
    trace = TraceBuilder().label(0, 100).launched(10, 30, 40, corr=7).write(tmp_path / "a.json")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(trace.read_bytes()), daemon=True)
    writer.start()
    ingest([str(pipe)], tmp_path / "pipe.duckdb", IngestOptions())
    writer.join(timeout=10)
    ingest([str(trace)], tmp_path / "file.duckdb", IngestOptions())
    rows = []
    for name in ("pipe", "file"):
        with TraceStore.open(tmp_path / f"{name}.duckdb") as store:
            rows.append(
                store.query("SELECT name, start_ns, dur_ns, step_id, step_link, busy_ns FROM kernels").to_dicts()
            )
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1
