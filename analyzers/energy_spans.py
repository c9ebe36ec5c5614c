"""Energy of what a device did: of its activities by step and phase, of its idle time by cause (method §8).

The kernel timeline gives who had the device when, the curve gives what that time cost. A device's parts sum to its energy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from analyzers.energy_curve import EnergyCurve, Floats, Ints
from traces.store import frame, named_sql

WORK = {
    "step_id": pl.Int64, "busy_ns": pl.Int64, "covered_ns": pl.Float64, "energy_j": pl.Float64, "prefill_j": pl.Float64,
    "decode_j": pl.Float64, "unsplit_j": pl.Float64, "prefill_ns": pl.Int64, "decode_ns": pl.Int64, "unsplit_ns": pl.Int64,
}  # fmt: skip
_CAUSES = {"cause": pl.String, "time_ns": pl.Int64, "covered_ns": pl.Float64, "energy_j": pl.Float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A device of the kernel timeline, and what is recorded of it."""

    rank: int
    device: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnergy:
    """What one device's energy went to.

    `work`: a row per step (NULL: activities of no step): busy_ns and energy_j with their parts prefill_*, decode_* and
    unsplit_*, the rest being of steps without phases; covered_ns, the time its energy is known for. `idle`: a row per cause:
    time_ns, covered_ns, energy_j. `rest_j`: in the window and neither. `outside_j`: before and after it.
    work + idle + rest + outside = the curve's total.
    """

    work: pl.DataFrame
    idle: pl.DataFrame
    rest_j: float
    outside_j: float
    window_j: float
    window_covered_ns: float


def device_energy(con: duckdb.DuckDBPyConnection, run_id: str, window: Window, curve: EnergyCurve) -> DeviceEnergy:
    """Attribute the energy of one device of run `run_id`."""
    keys = {"run_id": run_id, "rank": window.rank, "device": window.device}
    kernels = frame(con.sql(named_sql("energy_kernels", "analyzers"), params=keys))
    gaps = frame(con.sql(named_sql("energy_gaps", "analyzers"), params=keys))
    work, idle = _work(kernels, curve), _idle(gaps, curve)
    window_j, window_covered = curve.span(window.start_ns, window.end_ns)
    return DeviceEnergy(
        work=work, idle=idle, rest_j=window_j - float(work["energy_j"].sum()) - float(idle["energy_j"].sum()),
        outside_j=curve.total_j - window_j, window_j=window_j, window_covered_ns=window_covered,
    )  # fmt: skip


def _work(kernels: pl.DataFrame, curve: EnergyCurve) -> pl.DataFrame:
    if not kernels.height:
        return pl.DataFrame(schema=WORK)
    start, end, busy = (kernels[name].to_numpy() for name in ("start_ns", "end_ns", "busy_ns"))
    island = _islands(start, end)
    part = busy / (end - start)
    energy = _shared(curve.energy_j, start, end, part, island)
    covered = _shared(curve.covered_ns, start, end, part, island)
    of_busy = pl.col("energy_j") / pl.col("busy_ns")
    rows = kernels.with_columns(energy_j=pl.Series(energy), covered_ns=pl.Series(covered))
    rows = rows.with_columns(
        prefill_j=of_busy * pl.col("prefill_ns"), decode_j=of_busy * pl.col("decode_ns"),
        unsplit_j=pl.when(pl.col("prefill_ns").is_null()).then("energy_j"),
        unsplit_ns=pl.when(pl.col("prefill_ns").is_null()).then("busy_ns"),
    )  # fmt: skip
    names = [name for name in WORK if name != "step_id"]
    return rows.group_by("step_id").agg(pl.col(name).sum() for name in names).select(*WORK).cast(WORK)  # type: ignore[arg-type]


def _islands(start: Ints, end: Ints) -> Ints:
    """Where each stretch of the device without a break begins, as indices; activities are sorted by start."""
    reached = np.maximum.accumulate(end)
    return np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]]))


def _shared(measure: Callable[[Ints, Ints], Floats], start: Ints, end: Ints, part: Floats, island: Ints) -> Floats:
    """Each activity's own part of a cumulative quantity; an island's parts sum to what the island has.

    Where activities overlap, one's own part of its time (`part`) is charged at what its own time cost on average.
    """
    own: Floats = measure(start, end) * part
    whole: Floats = measure(start[island], np.maximum.reduceat(end, island))
    found = np.add.reduceat(own, island)
    factor = np.divide(whole, found, out=np.ones_like(whole), where=found > 0)
    size = np.diff(np.concatenate([island, [len(start)]]))
    result: Floats = own * np.repeat(factor, size)
    return result


def _idle(gaps: pl.DataFrame, curve: EnergyCurve) -> pl.DataFrame:
    start, end = (gaps[name].to_numpy() for name in ("start_ns", "end_ns"))
    rows = gaps.select(
        "cause", time_ns=pl.col("end_ns") - pl.col("start_ns"), covered_ns=pl.Series(curve.covered_ns(start, end)),
        energy_j=pl.Series(curve.energy_j(start, end)),
    )  # fmt: skip
    return rows.group_by("cause").agg(pl.all().sum()).sort("cause").select(*_CAUSES).cast(_CAUSES)  # type: ignore[arg-type]
