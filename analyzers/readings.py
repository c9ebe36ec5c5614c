"""Rows behind the reading commands `steps`, `phases`, `kernels` and `health`: values only, one SQL file per question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from traces.errors import NothingToAnalyze
from traces.health import withheld
from traces.printable import printable
from traces.store import TraceStore, named_sql

STEP_KINDS = ("prefill", "decode", "mixed", "other")
KERNEL_GROUPS = {
    "name": "k.name",
    "category": "k.category",
    "op": "coalesce(k.op_name, '(no operator)')",
    "step-kind": "coalesce(s.kind, '(no step)')",
}
READINGS_VERSION = 1


def steps(store: TraceStore, kind: str | None = None) -> pl.DataFrame:
    """One row per step, as in sql/steps_list.sql; `kind` keeps one kind. Raises NothingToAnalyze where there is none."""
    rows = store.named("steps_list", "analyzers", kind=kind)
    rows = without_withheld(rows, "steps", withheld(store.connection, store.run_id))
    if not rows.height and not store.query("SELECT 1 FROM steps WHERE run_id = ? LIMIT 1", [store.run_id]).height:
        raise NothingToAnalyze(
            "no steps were found in this recording",
            hint="the engine wrote no labels, and neither frames nor a sampler show where a step begins; see `stepscope health`",
        )
    return rows


def without_withheld(rows: pl.DataFrame, table: str, reasons: Mapping[str, str]) -> pl.DataFrame:
    """The rows with every `*_ns` number of `table` that a health check withholds as NULL."""
    gone = [
        name for name in rows.columns if f"{table}.{name}" in reasons or (table in reasons and name.endswith("_ns"))
    ]
    return rows.with_columns(pl.lit(None, dtype=rows.schema[name]).alias(name) for name in gone)


def health_notes(store: TraceStore) -> list[str]:
    """A line per thing the recording cannot carry, or only in part; nothing where every check is ok."""
    rows = health(store).filter(pl.col("status") != "ok")
    return [f"{row['status']}: {printable(row['message'])}" for row in rows.to_dicts()]


def phases(store: TraceStore) -> dict[str, Any]:
    """Time, tokens and cost per phase and step kind; token intervals with and without a prefill in the step.

    Keys: version, totals (sql/phases_totals.sql), kinds (sql/phases_by_kind.sql), itl (sql/phases_itl.sql), caveats: what
    the labels cannot tell, with the number of steps each applies to.
    """
    caveats = store.query(
        "SELECT caveat, count(*) AS steps FROM (SELECT unnest(from_json(caveats, '[\"VARCHAR\"]')) AS caveat FROM steps "
        "WHERE run_id = ? AND source = 'label') GROUP BY caveat ORDER BY steps DESC, caveat",
        [store.run_id],
    )
    return {
        "version": READINGS_VERSION,
        "totals": store.named("phases_totals", "analyzers").to_dicts(),
        "kinds": store.named("phases_by_kind", "analyzers").to_dicts(),
        "itl": store.named("phases_itl", "analyzers").to_dicts(),
        "caveats": caveats.to_dicts(),
    }


def kernels(store: TraceStore, by: str) -> pl.DataFrame:
    """One row per group of device activities; `by` is a key of KERNEL_GROUPS."""
    sql = named_sql("kernels_by", "analyzers").replace("{group}", KERNEL_GROUPS[by])
    return store.query(sql, {"run_id": store.run_id})


def health(store: TraceStore) -> pl.DataFrame:
    """The rows of table `health`, what matters first."""
    return store.query(
        "SELECT check_id, status, rank, value, threshold, affects, message FROM health WHERE run_id = ? "
        "ORDER BY CASE status WHEN 'withheld' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, check_id, rank",
        [store.run_id],
    )
