"""Checks on the recording itself: what it can carry, what it cannot, and which numbers are withheld for that.

Each check is one `sql/health_*.sql`, whose rows are those of table `health`: `rank` (NULL: the whole run), `check_id`,
`status` ('ok' | 'warning' | 'withheld'), `value` and `threshold` (unit as its header says), `affects` (JSON list of
tables and `table.column` numbers), `message` (what it means and what to do).
"""

from __future__ import annotations

import json

import duckdb

from traces.labels import PHASE_CAVEATS
from traces.rows import first_row
from traces.store import named_sql
from traces.unrecorded import host_marks, mark_unrecorded, stage_has

# In the order in which a reader wants them: what is missing altogether first.
CHECKS: tuple[str, ...] = (
    "health_no_device_activity",
    "health_capture_phase",
    "health_graph_kernels",
    "health_launch_kernels",
    "health_steps_without_activity",
    "health_quarantine",
    "health_head_and_tail",
    "health_unrecorded",
    "health_launch_outside",
    "health_launch_skew",
    "health_truncated",
    "health_empty_files",
    "health_clock_offsets",
    "health_hook_errors",
    "health_recording_cost",
    "health_label_caveats",
)
SEVERAL_RANKS_CHECKS: tuple[str, ...] = ("health_pid_clash",)
# These read the staging tables, which are there only while a recording is ingested; their ids are kept afterwards.
STAGE_CHECKS: tuple[str, ...] = (
    "health_missing_ranks", "health_graph_level", "health_ledger_match", "health_label_phases", "health_telemetry",
)  # fmt: skip
_STAGE_CHECK_IDS = (
    "('missing_ranks', 'graph_level', 'ledger_match', 'label_phases', "
    "'telemetry_power', 'telemetry_overlap', 'telemetry_notes')"
)

_INSERT = (
    "INSERT INTO health (run_id, rank, check_id, status, value, threshold, affects, message) "
    "SELECT $run_id, rank, check_id, status, value, threshold, affects, message FROM ({query})"
)


def quarantine(con: duckdb.DuckDBPyConnection) -> None:
    """Mark the activities of `stage.activity` that no sum may use. Before windows, parts and gaps are computed."""
    con.execute(named_sql("quarantine"))


def check(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill table `health` and `steps.trusted` of a linked run, and mark in `gaps` what is not recorded.

    Earlier rows of the run are replaced; where the staging tables are gone, those of the checks that read them stay.
    """
    staged = stage_has(con, "sources")
    kept = "" if staged else f"AND check_id NOT IN {_STAGE_CHECK_IDS}"
    con.execute(f"DELETE FROM health WHERE run_id = ? {kept}", [run_id])
    row = first_row(con.execute("SELECT count(DISTINCT rank) FROM sources WHERE run_id = ?", [run_id]))
    several = row is not None and row[0] > 1
    con.execute("SET VARIABLE phase_caveats = ?::VARCHAR[]", [sorted(PHASE_CAVEATS)])
    with host_marks(con, run_id):
        mark_unrecorded(con, run_id)
        for name in CHECKS + (SEVERAL_RANKS_CHECKS if several else ()) + (STAGE_CHECKS if staged else ()):
            con.execute(_INSERT.format(query=named_sql(name).rstrip().rstrip(";")), {"run_id": run_id})
    con.execute(named_sql("health_trust"), {"run_id": run_id})


def withheld(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, str]:
    """{table or `table.column`: why it is withheld} of a run; the first reason where there are several."""
    rows = con.execute(
        "SELECT affects, message FROM health WHERE run_id = ? AND status = 'withheld' ORDER BY rank NULLS FIRST, rowid",
        [run_id],
    ).fetchall()
    reasons: dict[str, str] = {}
    for affects, message in rows:
        for name in json.loads(affects):
            reasons.setdefault(str(name), str(message))
    return reasons
