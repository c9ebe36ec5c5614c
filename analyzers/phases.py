"""Whose time is it, prefill's or decode's: per kernel, step and request of a run (method §2–§4).

Pure steps belong to their phase whole. Mixed steps are split per category of kernel by analyzers/split.py; what comes of
it is written back so that kernels sum to steps and requests sum to phases, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.roof import Peaks
from analyzers.costs.shape import ModelShape
from analyzers.shares import device_ns
from analyzers.split import Learned, Steps, learn, per_step, split
from traces.store import frame, named_sql

_CATEGORY_UNKNOWN = "other"
LEAST_KNOWN = 0.8  # share of a step's time for which there must be something to go by, else it is not split


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBasis:
    """What the split may rest on; without a model, rates are per row and per token of context."""

    model: ModelShape | None = None
    peaks: Peaks | None = None
    overlap: bool = False  # the device loads and computes at once (a GPU does)


def fill(con: duckdb.DuckDBPyConnection, run_id: str, kernel_phases: pl.DataFrame, basis: SplitBasis) -> None:
    """Fill prefill_ns, decode_ns, the interval and the interference of steps and kernels, and device_ns of requests.

    `kernel_phases` is what kernels.apply_categories returned: kind, name, op_name, phase.
    """
    con.execute("SET VARIABLE run_id = ?", [run_id])
    con.execute(named_sql("phases_whole", "analyzers"))
    _store(
        con,
        "phase_of_kernel",
        kernel_phases.filter(pl.col("phase").is_not_null()).select("kind", "name", "op_name", "phase"),
    )
    rows = frame(con.sql(named_sql("phases_steps", "analyzers"), params={"run_id": run_id}))
    measured = frame(con.sql(named_sql("phases_measured", "analyzers"), params={"run_id": run_id}))
    steps = _steps(rows, measured)
    learned = learn(basis.model, steps, peaks=basis.peaks, overlap=basis.overlap)
    parts = split(learned, steps)
    numbered = pl.DataFrame({"step": np.arange(rows.height), "step_id": rows["step_id"]})
    parts = parts.join(_settled(parts), on="step")  # of the others the interval is the whole step: no number is one
    _store(con, "step_part", parts.join(numbered, on="step").select("step_id", "category", "prefill_ns"))
    bounds = per_step(parts).join(numbered, on="step")
    _store(
        con, "step_bounds", bounds.select("step_id", "split_low_ns", "split_high_ns", "split_method", "interference_ns")
    )
    con.execute(named_sql("phases_kernels", "analyzers"))
    _share_requests(con, run_id, learned, numbered)


def _settled(parts: pl.DataFrame) -> pl.DataFrame:
    """Steps whose split rests on a model or on measurements for LEAST_KNOWN of the time that both phases share."""
    known = pl.col("measured_ns").filter(pl.col("known")).sum() / pl.col("measured_ns").sum()
    return (
        parts.group_by("step")
        .agg(known.alias("known_share"))
        .filter(pl.col("known_share") >= LEAST_KNOWN)
        .select("step")
    )


def _steps(rows: pl.DataFrame, measured: pl.DataFrame) -> Steps:
    """Steps with one array entry per row of `rows`; unknown loads count as nothing asked."""
    index = pl.DataFrame({"step_id": rows["step_id"], "at": np.arange(rows.height)})
    placed = measured.with_columns(pl.col("category").fill_null(_CATEGORY_UNKNOWN)).join(index, on="step_id")
    times: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    launches: dict[str, float] = {}
    for (category,), part in placed.group_by("category"):
        column = np.zeros(rows.height, dtype=np.int64)
        column[part["at"].to_numpy()] = part["busy_ns"].to_numpy()
        times[str(category)] = column
        launches[str(category)] = float(np.median(part["launches"].to_numpy()))
    return Steps(prefill=_load(rows, "prefill"), decode=_load(rows, "decode"), measured=times, launches=launches)


def _load(rows: pl.DataFrame, phase: str) -> PhaseLoad:
    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return rows[f"{phase}_{name}"].fill_null(0).to_numpy().astype(np.float64)

    return PhaseLoad(
        reqs=column("reqs"), tokens=column("tokens"), kv_tokens=column("kv"), qq=column("qq"), qk=column("qk"),
        sampled_rows=column("sampled"), prompts=phase == "prefill",
    )  # fmt: skip


def _share_requests(con: duckdb.DuckDBPyConnection, run_id: str, learned: Learned, numbered: pl.DataFrame) -> None:
    """step_requests.device_ns: each side of a step divided over its requests; sums back to the step."""
    requests = frame(con.sql(named_sql("phases_requests", "analyzers"), params={"run_id": run_id}))
    if not requests.height:
        return
    sides = frame(
        con.sql(
            "SELECT step_id, coalesce(category, 'other') AS category, sum(prefill_ns)::BIGINT AS prefill_ns, "
            "sum(decode_ns)::BIGINT AS decode_ns FROM kernels WHERE run_id = $run_id AND valid AND step_id IS NOT NULL "
            "AND prefill_ns IS NOT NULL GROUP BY ALL",
            params={"run_id": run_id},
        )
    )  # fmt: skip
    with_step = requests.join(numbered, on="step_id", how="inner").sort("row_id")
    given = sides.join(numbered, on="step_id", how="inner").select("step", "category", "prefill_ns", "decode_ns")
    shares = device_ns(learned, given, with_step.select("step", "side", "new_tokens", "context_tokens", "sampled"))
    _store(con, "request_share", with_step.select("row_id").with_columns(device_ns=shares))
    con.execute(
        "UPDATE step_requests AS r SET device_ns = s.device_ns FROM request_share AS s "
        "WHERE r.run_id = getvariable('run_id') AND r.rowid = s.row_id"
    )


def _store(con: duckdb.DuckDBPyConnection, table: str, data: pl.DataFrame) -> None:
    con.register("frame_to_store", data.to_arrow())
    con.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT * FROM frame_to_store")
    con.unregister("frame_to_store")
