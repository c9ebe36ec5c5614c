"""What `summary` says about a run: values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from traces.health import withheld
from traces.store import TraceStore

SUMMARY_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in one value. Rows are those of the SQL files named `summary_*.sql`; times in ns, unknown is None.

    `withheld` maps the name of a number to the reason it is not given.
    """

    version: int = SUMMARY_VERSION
    run: dict[str, Any]
    devices: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    latency_pass: str | None
    overhead: dict[str, Any] | None
    health: list[dict[str, Any]]
    withheld: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def summarize(store: TraceStore) -> Summary:
    """The summary of the store's run. Latency is taken from the control pass where there is one (capture slows)."""
    reasons = withheld(store.connection, store.run_id)
    devices = store.query(
        "SELECT rank, device, name, vendor, window_start_ns, window_end_ns, busy_ns, idle_ns, unrecorded_ns "
        "FROM devices WHERE run_id = ? ORDER BY rank, device",
        [store.run_id],
    ).to_dicts()
    latency = store.named("summary_latency", "analyzers").to_dicts()
    passes = {row["pass"] for row in latency}
    chosen = next((name for name in ("control", "profiled", None) if name in passes), None)
    overhead = store.named("summary_overhead", "analyzers").to_dicts()[0]
    return Summary(
        run=_run_facts(store),
        devices=[_given(row, "devices", reasons) for row in devices],
        steps=[_given(row, "steps", reasons) for row in store.named("summary_steps", "analyzers").to_dicts()],
        categories=store.named("summary_categories", "analyzers").to_dicts(),
        requests=store.named("summary_requests", "analyzers").to_dicts(),
        latency=latency,
        latency_pass=chosen,
        overhead=overhead if overhead["steps"] else None,
        health=store.query(
            "SELECT rank, check_id, status, value, threshold, message FROM health WHERE run_id = ? AND status <> 'ok' "
            "ORDER BY status DESC, check_id, rank",
            [store.run_id],
        ).to_dicts(),
        withheld=reasons,
    )


def _run_facts(store: TraceStore) -> dict[str, Any]:
    facts: dict[str, Any] = store.query(
        "SELECT run_id, name, source, engine, engine_version, device_kind, model, dtype, clock, created_ns, "
        "window_start_ns, window_end_ns FROM runs WHERE run_id = ?",
        [store.run_id],
    ).to_dicts()[0]
    return facts


def _given(row: dict[str, Any], table: str, reasons: dict[str, str]) -> dict[str, Any]:
    """The row without the times that a health check withholds; the window itself stays."""
    gone = {name for name in row if f"{table}.{name}" in reasons}
    if table in reasons:
        gone |= {name for name in row if name.endswith("_ns") and not name.startswith("window")}
    return {name: None if name in gone else value for name, value in row.items()}
