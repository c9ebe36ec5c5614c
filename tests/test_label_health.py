"""What labels leave open is a warning where no ledger knows better, and so is a label that is wrong and does not say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from trace_builder import DECODE, MIXED, MS, US, RunBuilder, TraceBuilder

from traces.ingest import IngestOptions, ingest
from traces.labels import CAVEATS, PHASE_CAVEATS

RECOMPUTE = "execute_context_0(0)_generation_2(500)"
VERIFY = "step[TARGET_VERIFY bs=2 toks=8 g_sq=8 g_sk=90 g_sqsq=32 g_sqsk=360]"


def label_checks(path: Path, folder: Path) -> dict[str, tuple[Any, ...]]:
    """The checks of labels: status, value and message by check."""
    target = folder / "checked.duckdb"
    target.unlink(missing_ok=True)
    ingest([str(path)], target, IngestOptions())
    with duckdb.connect(str(target), read_only=True) as con:
        rows = con.execute(
            "SELECT check_id, status, value, message FROM health WHERE check_id LIKE 'label%'"
        ).fetchall()
    return {check: tuple(rest) for check, *rest in rows}


def trace_of(folder: Path, *labels: str) -> Path:
    """One kernel per label; the n-th takes n ms."""
    trace = TraceBuilder(rank=0)
    for number, label in enumerate(labels, start=1):
        start = number * 10 * MS
        trace.label(start, MS, label).launched(start + US, start + 2 * US, number * MS, number)
    return trace.write(folder / "trace.json")


def test_steps_that_labels_leave_open_are_a_share_of_the_time(tmp_path: Path) -> None:
    checks = label_checks(trace_of(tmp_path, DECODE, RECOMPUTE, MIXED), tmp_path)
    status, value, message = checks["label_caveats"]
    assert (status, value) == ("warning", 2 / 6)
    assert "1 of 3 labels, 33.3 % of the steps' time" in message
    assert "(generation_long_query, generation_multi_token)" in message


@pytest.mark.parametrize("labels", [(DECODE, MIXED), (VERIFY,), ("step[DECODE bs=8]",)])
def test_labels_whose_phases_are_plain_bring_no_warning(labels: tuple[str, ...], tmp_path: Path) -> None:
    """A verification has several tokens by its mode; counts that are not stated leave no phase open."""
    assert label_checks(trace_of(tmp_path, *labels), tmp_path) == {}


@pytest.mark.parametrize(
    ("recomputed", "status", "message"),
    [
        (2, "ok", "1 of 4 labels state other phases than the ledger, which counts: 1 of them say so themselves"),
        (0, "warning", "1 of 4 labels state other phases than the ledger, which counts: 0 of them say so themselves"),
    ],
)
def test_a_ledger_finds_labels_that_are_wrong(recomputed: int, status: str, message: str, tmp_path: Path) -> None:
    """Preempted with 66 tokens computed, of which the cache kept 64: `recomputed` + 1 in the first chunk of the rest."""
    run = RunBuilder()
    for number, (new, computed) in enumerate(((64, 0), (1, 64), (1, 65), (recomputed + 1, 64))):
        row = {"id": "r", "new": new, "computed": computed, "prompt": 64, "out": number, "resumed": number == 3}
        run.step(number * 10 * MS, 5 * MS, [row])
    checks = label_checks(run.write(tmp_path / "run"), tmp_path)
    assert checks == {"label_phases": (status, float(status == "warning"), message)}


def test_every_phase_caveat_is_explained() -> None:
    assert set(CAVEATS) >= PHASE_CAVEATS
