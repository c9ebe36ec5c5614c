"""What two remedies would have saved on a recording: estimates, after a published study of one cluster (execution_idle.toml).

Lower clocks: an execution-idle device draws what an L40S was measured to draw, in proportion. Packing: the summed activity
is carried by the fewest devices, and the others are unloaded. Neither knows what the engine would have done otherwise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import polars as pl

from analyzers.energy_curve import Ints
from analyzers.energy_devices import Sensed
from analyzers.execution_idle import SECOND_NS, intervals

_ROUNDING = 1e-9  # activities that sum to 1 fit one device, whatever their sum comes to in binary


@cache
def study() -> dict[str, Any]:
    """The published figures, with their source and setting."""
    text = resources.files("analyzers").joinpath("execution_idle.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What an unloaded device draws, W. `source`: 'given' | 'deep idle seconds' | 'datasheet' | 'lowest second'."""

    power_w: float
    source: str


def lowered(found: pl.DataFrame, after_ns: int, cooldown_ns: int) -> tuple[Ints, Ints]:
    """Starts and ends of the time at low clocks; `found` (start_ns, end_ns) are execution-idle intervals in order.

    Clocks fall `after_ns` into an interval, and not before `cooldown_ns` have passed since they last rose.
    """
    starts, ends = [], []
    rose: int | None = None
    for start, end in zip(found["start_ns"].to_list(), found["end_ns"].to_list(), strict=True):
        low = start + after_ns if rose is None else max(start + after_ns, rose + cooldown_ns)
        if low < end:
            starts.append(low)
            ends.append(end)
            rose = end
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def downclock(devices: Sequence[Sensed]) -> list[dict[str, Any]]:
    """A row per way to lower clocks: variant, power_ratio, time_ns at low clocks, energy_j in it, saved_j, and what it did
    to latency in the study (p95_ratio). Empty where no device has power."""
    known = [(item.curve, item.seconds) for item in devices if item.curve is not None]
    if not known:
        return []
    facts = study()["downclock"]
    time_ns, energy_j = 0, 0.0
    for curve, rows in known:
        start, end = lowered(intervals(rows, 0), facts["after_s"] * SECOND_NS, facts["cooldown_s"] * SECOND_NS)
        time_ns += int((end - start).sum())
        energy_j += float(curve.energy_j(start, end).sum())
    return [
        {
            "variant": variant, "power_ratio": facts[f"{variant}_w"] / facts["default_w"], "time_ns": time_ns,
            "energy_j": energy_j, "saved_j": energy_j * (1 - facts[f"{variant}_w"] / facts["default_w"]),
            "p95_ratio": facts[f"p95_{variant}_s"] / facts["p95_default_s"],
        }
        for variant in ("sm_only", "sm_and_memory")
    ]  # fmt: skip


def packing(devices: Sequence[Sensed], idle_w: float | None, baseline: Baseline | None, group: int) -> dict[str, Any]:
    """What unloading devices would have saved, or `why` it cannot be said.

    `idle_w`: an execution-idle device's power. `group`: devices that hold one copy of the model. saved_low_j: as many
    devices stay loaded as the busiest second needs; saved_high_j: as many as each second needs, moved at once. Work itself
    is taken to cost the same wherever it runs.
    """
    result: dict[str, Any] = {"why": None, "devices": len(devices), "group": group}
    if len(devices) <= group:
        return result | {"why": "one copy of the model: there is nothing to pack"}
    if idle_w is None or baseline is None:
        return result | {"why": "no second of execution-idle with known power"}
    per_second = _needed(devices, group)
    if not per_second.height:
        return result | {"why": "no second with a program on a device"}
    resident, needed, dur_s = (per_second[name].to_numpy() for name in ("resident", "needed", "dur_s"))
    less_w = max(idle_w - baseline.power_w, 0.0)
    peak = int(needed.max())
    return result | {
        "idle_w": idle_w, "baseline_w": baseline.power_w, "baseline_source": baseline.source, "peak_devices": peak,
        "mean_devices": float(np.average(needed, weights=dur_s)),
        "saved_low_j": float((np.maximum(resident - peak, 0) * dur_s).sum() * less_w),
        "saved_high_j": float((np.maximum(resident - needed, 0) * dur_s).sum() * less_w),
    }  # fmt: skip


def _needed(devices: Sequence[Sensed], group: int) -> pl.DataFrame:
    """Per second with a program on some device: how many have one, how many the summed activity needs, its length in s."""
    rows = pl.concat([item.seconds for item in devices])
    if not rows.height:
        return pl.DataFrame(schema={"resident": pl.Int64, "needed": pl.Int64, "dur_s": pl.Float64})
    origin = rows["start_ns"].min()
    second = (pl.col("start_ns") - origin + SECOND_NS // 2) // SECOND_NS
    loaded = rows.filter(pl.col("state").is_in(["active", "execution_idle"]))
    load = (
        pl.col("activity").fill_null(1.0).clip(0, 1).sum() / group
    )  # active by its links alone: its load is not known
    return (
        loaded.group_by(second.alias("second"))
        .agg(
            resident=pl.len().cast(pl.Int64), copies=(load - _ROUNDING).ceil().clip(lower_bound=1).cast(pl.Int64),
            dur_s=(pl.col("end_ns") - pl.col("start_ns")).mean() / SECOND_NS,
        )
        .with_columns(needed=pl.min_horizontal(pl.col("copies") * group, "resident"))
        .sort("second")
    )  # fmt: skip
