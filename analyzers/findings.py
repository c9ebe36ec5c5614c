"""Findings of a run: what the makers found, ranked by the time it explains, what is not worth showing left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import duckdb

from analyzers import finding_agents, finding_engine
from analyzers.finding import FINDING_COLUMNS, Finding, Gain, Interval, Maker, Proof, severity_of
from analyzers.finding_unseen import Unseen, unseen
from traces.store import TraceStore

FINDINGS_VERSION = 1
MAKERS: tuple[Maker, ...] = (finding_agents.make, finding_engine.make)


def fill(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill table `findings` of a run that is analyzed otherwise; what an earlier analysis wrote is replaced."""
    con.execute("DELETE FROM findings WHERE run_id = ?", [run_id])
    found = ranked(of_one_change([finding for make in MAKERS for finding in make(con, run_id)]))
    if found:
        marks = ", ".join("?" * len(FINDING_COLUMNS))
        con.executemany(
            f"INSERT INTO findings ({', '.join(FINDING_COLUMNS)}) VALUES ({marks})",
            [list(finding.row(run_id, place)) for place, finding in enumerate(found, start=1)],
        )


def of_one_change(found: Sequence[Finding]) -> list[Finding]:
    """The findings; those that the same change ends get the gain of that change, since nobody can have one without the other.

    At least the largest of them goes away (what ends one cause may shorten the other), at most all. The most likely is the
    largest and half of the others.
    """
    groups: dict[tuple[Proof, str], list[tuple[Finding, Gain]]] = {}  # by the change, and what gains are shares of
    for item in found:
        if item.proof is not None and item.gain is not None:
            groups.setdefault((item.proof, item.gain.of), []).append((item, item.gain))
    return [
        item if item.proof is None or item.gain is None else _joined(item, groups[item.proof, item.gain.of])
        for item in found
    ]


def _joined(item: Finding, same: Sequence[tuple[Finding, Gain]]) -> Finding:
    others = [other for other, _ in same if other is not item]
    if not others:
        return item
    gains = sorted((gain for _, gain in same), key=lambda gain: -gain.value)
    joint = Gain(
        value=min(1.0, gains[0].value + sum(gain.value for gain in gains[1:]) / 2), of=gains[0].of,
        interval=Interval(
            low=max(gain.interval.low for gain in gains), high=min(1.0, sum(gain.interval.high for gain in gains))
        ),
    )  # fmt: skip
    too = ", ".join(other.finding_id for other in others)
    cause = f"{item.cause}; the gain is of the change, which ends {too} too"
    return replace(item, gain=joint, severity=severity_of(joint), cause=cause)


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """Those worth showing, most time first, information last."""
    return sorted(
        (finding for finding in found if finding.shown),
        key=lambda finding: (finding.only_said, -finding.time_ns, finding.finding_id),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsReport:
    """`findings`: rows of table `findings` in their order, `proof` decoded, with `proved`: the last row of `proofs` on it,
    or None. Times in ns, shares of 1, unknown is None. `baseline`: the last proof without a finding, or None.
    `not_looked_at`: kinds of causes that could not be looked for, so that their absence means nothing."""

    version: int = FINDINGS_VERSION
    run_id: str
    findings: list[dict[str, Any]]
    baseline: dict[str, Any] | None
    not_looked_at: list[Unseen] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read_findings(store: TraceStore) -> FindingsReport:
    """The findings of a run, the most time first."""
    rows = store.query(
        "SELECT * EXCLUDE (run_id) FROM findings WHERE run_id = ? ORDER BY place", [store.run_id]
    ).to_dicts()  # fmt: skip
    proofs = {
        row["finding_id"]: row | {name: json.loads(row[name]) if row[name] else None for name in ("passes", "change")}
        for row in store.query(
            "SELECT * EXCLUDE (run_id) FROM proofs WHERE run_id = ? ORDER BY created_ns", [store.run_id]
        ).to_dicts()
    }
    for row in rows:
        row["proof"] = json.loads(row["proof"]) if row["proof"] else None
        row["proved"] = proofs.get(row["finding_id"])
    return FindingsReport(
        run_id=store.run_id, findings=rows, baseline=proofs.get("none"), not_looked_at=unseen(store)
    )  # fmt: skip
