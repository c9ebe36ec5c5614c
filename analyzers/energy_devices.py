"""Devices with sensors, and which device of the kernel timeline each of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import polars as pl

from analyzers.energy_curve import EnergyCurve, energy_curve, gap_limit_ns
from analyzers.energy_spans import Window
from analyzers.execution_idle import ACTIVITY, STAND_IN, cleaned, seconds, signals_of
from traces.store import frame, named_sql

Key = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensed:
    """One device as its sensors saw it. Times in ns.

    `rank`, `device` as telemetry has them, `window` the device of the kernel timeline it is. `basis`: 'activity' |
    'utilization' (the stand-in) | None. `residence`: 'sensor' | 'timeline' | 'assumed' | None, how it is known that a
    program holds the device. `seconds` as from execution_idle.seconds. `curve`: None where there is no power sensor.
    `period_ns`: of its samples; `power_period_ns`: the finest time its energy can be told apart in.
    """

    rank: int | None
    device: int | None
    window: Window | None
    name: str | None
    source: str | None
    averaged: bool
    samples: int
    start_ns: int
    end_ns: int
    period_ns: int | None
    gaps: int
    gap_ns: int
    signals: tuple[str, ...]
    basis: str | None
    residence: str | None
    seconds: pl.DataFrame
    curve: EnergyCurve | None
    power_period_ns: int | None

    @property
    def key(self) -> Key:
        """Rank and device, as telemetry has them."""
        return self.rank, self.device


def sensed_devices(con: duckdb.DuckDBPyConnection, run_id: str, *, assume_resident: bool = False) -> list[Sensed]:
    """Every device of run `run_id` that has telemetry, in the order of its keys."""
    samples = frame(con.sql(named_sql("energy_samples", "analyzers"), params={"run_id": run_id}))
    if not samples.height:
        return []
    sensors = _by_key(frame(con.sql(named_sql("energy_sensors", "analyzers"), params={"run_id": run_id})))
    held = frame(con.sql(named_sql("energy_resident", "analyzers"), params={"run_id": run_id}))
    parts = samples.partition_by("rank", "device", as_dict=True, include_key=False, maintain_order=True)
    keys = [_key(*key) for key in parts]
    places = matched(keys, held.to_dicts(), {key: row["name"] for key, row in sensors.items()})
    windows = windows_of(con, run_id)
    found = []
    for key, rows in zip(keys, parts.values(), strict=True):
        place = places.get(key)
        spans = [] if place is None else [(place["start_ns"], place["end_ns"])]
        window = None if place is None else windows.get((place["rank"], place["device"]))
        one = _sensed(key, cleaned(rows), sensors.get(key, {}), window, spans, assume_resident=assume_resident)
        found += [] if one is None else [one]
    return found


def windows_of(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[Key, Window]:
    """Devices of the kernel timeline."""
    rows = frame(con.sql(named_sql("energy_windows", "analyzers"), params={"run_id": run_id})).to_dicts()
    return {
        (row["rank"], row["device"]): Window(
            rank=row["rank"], device=row["device"], start_ns=row["window_start_ns"], end_ns=row["window_end_ns"]
        )
        for row in rows
    }


def matched(
    keys: Sequence[Key], places: Sequence[dict[str, Any]], names: Mapping[Key, object]
) -> dict[Key, dict[str, Any]]:
    """For each key of telemetry the device of the timeline it is, where that can be told.

    By rank and ordinal; else by ordinal, where only one device on either side has it (a sampler knows no ranks); else, one
    device on either side, unless their names contradict each other.
    """
    by_key = {(place["rank"], place["device"]): place for place in places}
    found = {key: by_key[key] for key in keys if key in by_key}
    taken = {(place["rank"], place["device"]) for place in found.values()}
    for key in keys:
        same = [place for place in places if place["device"] == key[1]]
        alone = len([other for other in keys if other[1] == key[1]]) == 1
        if key not in found and alone and len(same) == 1 and (same[0]["rank"], same[0]["device"]) not in taken:
            found[key] = same[0]
    if not found and len(keys) == len(places) == 1:
        name, other = names.get(keys[0]), places[0]["name"]
        if name is None or other is None or name == other:
            found[keys[0]] = places[0]
    return found


def _key(rank: object, device: object) -> Key:
    return (rank if isinstance(rank, int) else None, device if isinstance(device, int) else None)


def _by_key(rows: pl.DataFrame) -> dict[Key, dict[str, Any]]:
    return {_key(row["rank"], row["device"]): row for row in rows.to_dicts()}


def _sensed(
    key: Key, samples: pl.DataFrame, sensor: Mapping[str, Any], window: Window | None,
    spans: Sequence[tuple[int, int]], *, assume_resident: bool,
) -> Sensed | None:  # fmt: skip
    if not samples.height:
        return None
    ts = samples["ts_ns"].to_numpy()
    limit = gap_limit_ns(ts)
    steps = np.diff(ts)
    curve = energy_curve(samples)
    signals = signals_of(samples)
    basis = "utilization" if STAND_IN in signals else "activity" if set(signals) & set(ACTIVITY) else None
    said = samples["resident"].null_count() < samples.height
    residence = "sensor" if said else "timeline" if spans else "assumed" if assume_resident else None
    return Sensed(
        rank=key[0], device=key[1], window=window, name=_text(sensor.get("name")), source=_text(sensor.get("source")),
        averaged=bool(sensor.get("from_driver")) and curve is not None and curve.source == "power",
        samples=samples.height, start_ns=int(ts[0]), end_ns=int(ts[-1]),
        period_ns=int(np.median(steps)) if len(steps) else None,
        gaps=int((steps > limit).sum()), gap_ns=int(steps[steps > limit].sum()), signals=signals, basis=basis,
        residence=residence, seconds=seconds(samples, limit, resident_spans=spans, assume_resident=assume_resident),
        curve=curve, power_period_ns=_power_period(curve, sensor.get("power_period_ns")),
    )  # fmt: skip


def _power_period(curve: EnergyCurve | None, measured_ns: object) -> int | None:
    """A counter's readings show how often it moves; a power reading may stand still, so what the sampler measured counts."""
    if curve is None:
        return None
    if curve.source == "counter" or not isinstance(measured_ns, int):
        return curve.period_ns
    return max(curve.period_ns, measured_ns)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
