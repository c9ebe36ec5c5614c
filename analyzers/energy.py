"""Execution-idle intervals, and the energy of steps and requests: what `analyze` writes (method §8)."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl

from analyzers.energy_curve import EnergyCurve
from analyzers.energy_devices import Sensed, sensed_devices
from analyzers.energy_spans import WORK, DeviceEnergy, device_energy
from analyzers.execution_idle import PAPER_DURATIONS_S, intervals
from traces.store import named_sql

_INTERVALS = {
    "rank": pl.Int32, "device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "min_duration_s": pl.Float64,
    "energy_j": pl.Float64,
}  # fmt: skip
_KNOWN = 0.999  # of an interval's time that has to have known energy for the interval to have one


def fill(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill table execution_idle for both of the paper's durations, and energy_j of steps, step_requests and requests.

    Needs phases and requests. What an earlier analysis wrote is replaced; without telemetry everything stays empty.
    """
    con.execute("SET VARIABLE run_id = ?", [run_id])
    con.execute("DELETE FROM execution_idle WHERE run_id = ?", [run_id])
    devices = sensed_devices(con, run_id)
    _store_intervals(con, run_id, devices)
    attribute(con, run_id, devices)
    con.execute(named_sql("energy_store", "analyzers"))


def attribute(
    con: duckdb.DuckDBPyConnection, run_id: str, devices: list[Sensed]
) -> dict[tuple[int | None, int | None], DeviceEnergy]:
    """What the energy of each device went to, by its telemetry key, where it has power and a kernel timeline.

    Makes the temporary tables energy_step and energy_request (see their SQL files).
    """
    con.execute("SET VARIABLE run_id = ?", [run_id])
    found = {
        item.key: device_energy(con, run_id, item.window, item.curve)
        for item in devices
        if item.curve is not None and item.window is not None
    }
    work = [result.work for result in found.values()]
    periods = [(item.window.rank, item.power_period_ns) for item in devices if item.key in found and item.window]
    _table(con, "energy_work", pl.concat(work) if work else _NO_WORK)
    _table(con, "energy_period", pl.DataFrame(periods, schema=_PERIOD, orient="row"))
    con.execute(named_sql("energy_steps", "analyzers"))
    con.execute(named_sql("energy_requests", "analyzers"))
    return found


def interval_energy(curve: EnergyCurve | None, found: pl.DataFrame) -> pl.DataFrame:
    """`found` (start_ns, end_ns) with energy_j, NULL where the sensor does not cover it."""
    if curve is None:
        return found.with_columns(energy_j=pl.lit(None, dtype=pl.Float64))
    start, end = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    known = curve.covered_ns(start, end) >= _KNOWN * (end - start)
    return found.with_columns(energy_j=pl.Series(np.where(known, curve.energy_j(start, end), np.nan), nan_to_null=True))


_NO_WORK = pl.DataFrame(schema=WORK)
_PERIOD = {"rank": pl.Int32, "period_ns": pl.Int64}


def _store_intervals(con: duckdb.DuckDBPyConnection, run_id: str, devices: list[Sensed]) -> None:
    parts = [pl.DataFrame(schema=_INTERVALS)]
    for item in devices:
        for duration in PAPER_DURATIONS_S:
            rows = interval_energy(item.curve, intervals(item.seconds, duration)).with_columns(
                rank=pl.lit(item.rank, dtype=pl.Int32), device=pl.lit(item.device, dtype=pl.Int32),
                min_duration_s=pl.lit(duration),
            )  # fmt: skip
            parts.append(rows.select(*_INTERVALS))
    _table(con, "energy_interval", pl.concat(parts))
    con.execute(
        "INSERT INTO execution_idle (run_id, rank, device, start_ns, end_ns, min_duration_s, energy_j) "
        "SELECT ?, rank, device, start_ns, end_ns, min_duration_s, energy_j FROM energy_interval "
        "ORDER BY min_duration_s, rank, device, start_ns",
        [run_id],
    )


def _table(con: duckdb.DuckDBPyConnection, name: str, data: pl.DataFrame) -> None:
    con.register("frame_to_store", data.to_arrow())
    con.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM frame_to_store")
    con.unregister("frame_to_store")
