"""Does the evidence of a finding add up to what the finding says that it explains?"""

from __future__ import annotations

import duckdb
import pytest


def assert_explained(
    con: duckdb.DuckDBPyConnection, finding_id: str, evidence: str, device_ns: int | None, energy_j: float | None
) -> None:
    """`evidence` returns rows, and its columns `explained_ns` and `explained_j` sum to what is given (where it is)."""
    rows = con.execute(evidence)
    names = [column[0] for column in rows.description or []]
    found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    assert found, finding_id
    if device_ns is not None:
        assert sum(row["explained_ns"] or 0 for row in found) == device_ns, finding_id
    if energy_j is not None:
        assert sum(row["explained_j"] or 0 for row in found) == pytest.approx(energy_j), finding_id
