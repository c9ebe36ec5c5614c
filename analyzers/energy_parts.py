"""Where a run's energy went by phase and cause of idleness, and its two idle figures side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analyzers.energy_devices import Key, Sensed
from analyzers.energy_spans import DeviceEnergy
from analyzers.execution_idle import PAPER_DURATIONS_S, intervals
from traces.store import TraceStore

_WORK = ("prefill", "decode", "unsplit")
_PLACES = (
    "prefill",
    "decode",
    "other",
    "not split",
    "unattributed",
    "idle",
    "unrecorded",
    "doubtful",
    "rest",
    "outside",
)
_IDLE_NUMBERS = ("devices.idle_ns", "gaps", "devices")
_WORK_NUMBERS = ("devices.busy_ns", "steps.busy_ns", "kernels", "steps", "devices")
_ROUNDING = 1e-9  # of the whole: what differences of sums leave


def doubtful_idle(reasons: Mapping[str, str]) -> str | None:
    """Why the recording cannot carry idle times, where a health check withholds them."""
    return next((reasons[name] for name in _IDLE_NUMBERS if name in reasons), None)


def doubtful_work(reasons: Mapping[str, str]) -> str | None:
    """Why it cannot carry the times of steps and activities."""
    return next((reasons[name] for name in _WORK_NUMBERS if name in reasons), None)


def energy_parts(
    powered: Sequence[Sensed], found: Mapping[Key, DeviceEnergy], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row per part: part, cause, time_ns, energy_j, share. Rows sum to the energy of all devices with power.

    part: 'prefill' | 'decode' | 'other' (steps without phases) | 'not split' | 'unattributed' (activities of no step) |
    'idle' (with its cause) | 'unrecorded' | 'doubtful' (health withholds which of these it is) | 'rest' (in the window,
    neither) | 'outside' (not on the kernel timeline). Times are of the kernel timeline; None for 'rest'.
    """
    rows: dict[tuple[str, str | None], list[float]] = {}
    no_idle, no_work = doubtful_idle(reasons) is not None, doubtful_work(reasons) is not None

    def add(part: str, cause: str | None, time_ns: float, energy_j: float) -> None:
        if part not in ("rest", "outside") and (no_work or (no_idle and part in ("idle", "unrecorded"))):
            part, cause = "doubtful", None
        entry = rows.setdefault((part, cause), [0.0, 0.0])
        entry[0] += time_ns
        entry[1] += energy_j

    for item in powered:
        result = found.get(item.key)
        if item.curve is None:
            continue
        if result is None:
            add("outside", None, item.curve.total_ns, item.curve.total_j)
            continue
        _add_work(add, result.work)
        for row in result.idle.to_dicts():
            unrecorded = row["cause"] == "unrecorded"
            part, cause = ("unrecorded", None) if unrecorded else ("idle", row["cause"])
            add(part, cause, row["time_ns"], row["energy_j"])
        add("rest", None, 0.0, result.rest_j)
        add("outside", None, item.curve.total_ns - result.window_covered_ns, result.outside_j)
    whole = sum(energy for _, energy in rows.values())
    given = sorted(rows.items(), key=lambda entry: (_PLACES.index(entry[0][0]), -entry[1][1]))
    return [
        {
            "part": part, "cause": cause, "time_ns": None if part == "rest" else round(time_ns), "energy_j": energy_j,
            "share": energy_j / whole if whole else None,
        }
        for (part, cause), (time_ns, energy_j) in given
        if time_ns or abs(energy_j) > _ROUNDING * whole
    ]  # fmt: skip


def _add_work(add: Any, work: pl.DataFrame) -> None:
    ours, nobody = work.filter(pl.col("step_id").is_not_null()), work.filter(pl.col("step_id").is_null())
    left_ns, left_j = float(ours["busy_ns"].sum()), float(ours["energy_j"].sum())
    for name in _WORK:
        time_ns, energy_j = float(ours[f"{name}_ns"].sum()), float(ours[f"{name}_j"].sum())
        add("not split" if name == "unsplit" else name, None, time_ns, energy_j)
        left_ns, left_j = left_ns - time_ns, left_j - energy_j
    add("other", None, left_ns, left_j)
    add("unattributed", None, float(nobody["busy_ns"].sum()), float(nobody["energy_j"].sum()))


def kernel_windows(
    store: TraceStore, devices: Sequence[Sensed], found: Mapping[Key, DeviceEnergy], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row per device of the kernel timeline: its window with the idle share by kernels, and for the same time what
    the sensors say: covered_share of the window, execution_idle_share (no shortest duration) and
    execution_idle_share_5s of the covered time, energy_j. `why`: the idle share is withheld."""
    by_window = {(item.window.rank, item.window.device): item for item in devices if item.window is not None}
    rows = []
    for row in store.named("energy_windows", "analyzers").to_dicts():
        window_ns = row["window_end_ns"] - row["window_start_ns"]
        why = reasons.get("devices.idle_ns") or reasons.get("devices")
        idle = row["idle_ns"] / window_ns if row["idle_ns"] is not None and window_ns and not why else None
        item = by_window.get((row["rank"], row["device"]))
        result = None if item is None else found.get(item.key)
        rows.append({
            "rank": row["rank"], "device": row["device"], "window_ns": window_ns, "kernel_idle_share": idle,
            "unrecorded_share": row["unrecorded_ns"] / window_ns if row["unrecorded_ns"] is not None and window_ns else None,
            "why": why, "energy_j": None if result is None else result.window_j,
            **_sensed_share(item, row["window_start_ns"], row["window_end_ns"]),
        })  # fmt: skip
    return rows


def _sensed_share(item: Sensed | None, start_ns: int, end_ns: int) -> dict[str, float | None]:
    names = ("covered_share", "unknown_share", "execution_idle_share", "execution_idle_share_5s")
    if item is None or end_ns <= start_ns:
        return dict.fromkeys(names)
    covered = _overlap(item.seconds, start_ns, end_ns)
    unknown = _overlap(item.seconds.filter(pl.col("state") == "unknown"), start_ns, end_ns)
    idle = [_overlap(intervals(item.seconds, duration), start_ns, end_ns) for duration in PAPER_DURATIONS_S]
    known = covered > unknown
    values = (covered / (end_ns - start_ns), unknown / covered if covered else None)
    return dict(zip(names, (*values, *((part / covered if known else None) for part in idle)), strict=True))


def _overlap(rows: pl.DataFrame, start_ns: int, end_ns: int) -> int:
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    return int(np.maximum(np.minimum(end, end_ns) - np.maximum(start, start_ns), 0).sum())
