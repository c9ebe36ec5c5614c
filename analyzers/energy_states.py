"""Time and energy of a run's devices by state, and the lengths of execution-idle intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from analyzers.energy_devices import Sensed
from analyzers.execution_idle import SECOND_NS, STATES, intervals

UNSAMPLED = "unsampled"
_IN_EXECUTION = ("active", "execution_idle")


def state_rows(devices: Sequence[Sensed], min_duration_s: float) -> list[dict[str, Any]]:
    """A row per state: min_duration_s, state, time_ns, energy_j, covered_ns (time with known energy), time_share,
    energy_share, power_w. Execution-idle shorter than `min_duration_s` is active. 'unsampled' is time of a slow power
    sensor in which no other was read. Rows sum to all seconds and to the energy of all devices with power."""
    time_ns, energy_j, covered_ns = (dict.fromkeys((*STATES, UNSAMPLED), 0.0) for _ in range(3))
    for item in devices:
        for state, rows in _by_state(item, min_duration_s).items():
            start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
            time_ns[state] += int((end - start).sum())
            if item.curve is not None:
                energy_j[state] += float(item.curve.energy_j(start, end).sum())
                covered_ns[state] += float(item.curve.covered_ns(start, end).sum())
    curves = [item.curve for item in devices if item.curve is not None]
    left_ns = sum(curve.total_ns for curve in curves) - sum(covered_ns.values())
    if left_ns >= 1:
        time_ns[UNSAMPLED] = covered_ns[UNSAMPLED] = left_ns
        energy_j[UNSAMPLED] = sum(curve.total_j for curve in curves) - sum(energy_j.values())
    whole_ns, whole_j = sum(time_ns.values()), sum(energy_j.values())
    return [
        {
            "min_duration_s": min_duration_s, "state": state, "time_ns": int(time_ns[state]),
            "energy_j": energy_j[state] if curves else None, "covered_ns": int(covered_ns[state]),
            "time_share": _ratio(time_ns[state], whole_ns),
            "energy_share": _ratio(energy_j[state], whole_j) if curves else None,
            "power_w": _ratio(energy_j[state] * SECOND_NS, covered_ns[state]),
        }
        for state in (*STATES, UNSAMPLED)
        if whole_ns and (state in STATES or time_ns[state])
    ]  # fmt: skip


def execution_idle_rows(devices: Sequence[Sensed], durations: Sequence[float]) -> list[dict[str, Any]]:
    """A row per shortest duration: intervals (n), their length p50_s, p90_s, p99_s (linear interpolation), time_ns,
    energy_j, and time_share and energy_share of execution-idle + active. Empty where no second's state is known."""
    rows = []
    for duration in durations:
        states = {row["state"]: row for row in state_rows(devices, duration)}
        if not states or not any(states[name]["time_ns"] for name in STATES if name != "unknown"):
            continue
        lengths = np.concatenate([_lengths_s(item, duration) for item in devices])
        p50, p90, p99 = (
            (float(value) for value in np.percentile(lengths, (50, 90, 99))) if len(lengths) else (None,) * 3
        )
        idle = states["execution_idle"]
        whole_ns = sum(states[name]["time_ns"] for name in _IN_EXECUTION)
        known = idle["energy_j"] is not None
        whole_j = sum(states[name]["energy_j"] for name in _IN_EXECUTION) if known else None
        rows.append({
            "min_duration_s": duration, "n": len(lengths), "p50_s": p50, "p90_s": p90, "p99_s": p99,
            "time_ns": idle["time_ns"], "energy_j": idle["energy_j"],
            "time_share": _ratio(idle["time_ns"], whole_ns), "energy_share": _ratio(idle["energy_j"], whole_j),
        })  # fmt: skip
    return rows


def mean_power_w(devices: Sequence[Sensed], state: str) -> float | None:
    """Mean power of all seconds in a state, W; None where there is none with known energy."""
    rows = {row["state"]: row["power_w"] for row in state_rows(devices, 0)}
    power: float | None = rows.get(state)
    return power


def lowest_second_w(devices: Sequence[Sensed]) -> float | None:
    """The lowest mean power of a whole second with known energy, W."""
    found = []
    for item in devices:
        if item.curve is None:
            continue
        start, end = item.seconds["start_ns"].to_numpy(), item.seconds["end_ns"].to_numpy()
        whole = (end - start == SECOND_NS) & (item.curve.covered_ns(start, end) == SECOND_NS)
        found += [float(item.curve.energy_j(start, end)[whole].min())] if whole.any() else []
    return min(found) if found else None


def _by_state(item: Sensed, min_duration_s: float) -> dict[str, pl.DataFrame]:
    """start_ns, end_ns of the time in each state."""
    parts = {state: item.seconds.filter(pl.col("state") == state) for state in STATES}
    if min_duration_s > 0:
        every, long = intervals(item.seconds, 0), intervals(item.seconds, min_duration_s)
        short = every.join(long, on="start_ns", how="anti")
        parts["execution_idle"] = long
        parts["active"] = pl.concat([parts["active"].select("start_ns", "end_ns"), short])
    return parts


def _lengths_s(item: Sensed, min_duration_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = intervals(item.seconds, min_duration_s)
    lengths: np.ndarray[Any, np.dtype[np.float64]] = (found["end_ns"] - found["start_ns"]).to_numpy() / SECOND_NS
    return lengths


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
