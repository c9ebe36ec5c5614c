"""`--strict`: withheld numbers are an error."""

from __future__ import annotations

from pathlib import Path

from traces.errors import NothingToAnalyze
from traces.store import TraceStore


def refuse_withheld(target: Path, run_id: str) -> None:
    """Raise NothingToAnalyze (exit 5) where a health check of the run withheld a number. The database stays."""
    with TraceStore.open(f"{target}#{run_id}") as store:
        rows = store.query(
            "SELECT check_id, message FROM health WHERE run_id = ? AND status = 'withheld' ORDER BY check_id, rank",
            [run_id],
        ).to_dicts()
    if rows:
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        raise NothingToAnalyze(
            f"withheld by {rows[0]['check_id']}: {rows[0]['message']}{more}", hint=f"stepscope health {target}"
        )
