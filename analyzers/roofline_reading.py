"""The roofline of a run as values: by kernel, category, step or phase, with utilization and where numbers come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzers.bounds import BOUNDS, classified, path_bandwidth, thresholds
from analyzers.datasheet import flops_of, link_rate
from analyzers.hardware import NO_OVERRIDE, PeakOverride, calibration_of, smallest
from traces.errors import NothingToAnalyze
from traces.store import TraceStore, frame, named_sql

GROUPS: dict[str, list[str]] = {
    "kernel": ["name", "category"],
    "category": ["category"],
    "step": ["step_id", "seq", "kind"],
    "phase": [],
}
ROOFLINE_VERSION = 1
MUCH_UNCOSTED = 0.05  # of device time: more gets a hint
MOST_TOLD = (
    0.5  # of a group's time has to have a cost, for its intensity, side and share of the roof to speak of the group
)
LEAST_USED = 0.8  # of a phase's time has to have a cost for MFU and MBU, which count what has none as nothing done
_SOURCES = ("shapes", "capture", "model")


def read_roofline(store: TraceStore, by: str = "category", peaks: PeakOverride = NO_OVERRIDE) -> dict[str, Any]:
    """Keys: version, by, devices (sql/roofline_wall.sql, and link_bytes_s: bytes/s to other devices in one direction),
    thresholds, coverage, sources (shares of busy time), phases (FLOPs, bytes, MFU and MBU per phase over device and wall
    time, and the share of it whose cost is known), rows (one per group, the largest first), hints.

    `peaks` replace the stored ones for this reading only. Raises NothingToAnalyze without device activity.
    """
    return read_rooflines(store, (by,), peaks)[0]


def read_rooflines(
    store: TraceStore, groupings: Sequence[str], peaks: PeakOverride = NO_OVERRIDE
) -> list[dict[str, Any]]:
    """`read_roofline` of several groupings, for which the activities are read once."""
    parameters = {"run_id": store.run_id}
    rows = frame(store.connection.sql(named_sql("roofline_read", "analyzers"), params=parameters))
    if not rows.height:
        raise NothingToAnalyze("no device activity was recorded", hint="see `stepscope health`")
    devices = frame(store.connection.sql(named_sql("roofline_wall", "analyzers"), params=parameters))
    devices = devices.with_columns(
        link_bytes_s=pl.Series([link_rate(name) for name in devices["name"]], dtype=pl.Float64)
    )
    empty_ns, smallest_bytes = smallest(calibration_of(store.connection, store.run_id))
    if peaks != NO_OVERRIDE:
        dtype = store.query("SELECT coalesce(dtype, 'bf16') AS dtype FROM runs WHERE run_id = ?", [store.run_id])[
            "dtype"
        ][0]
        devices = _overridden(devices, peaks, dtype)
        rows = classified(_held_against(rows, devices, peaks), empty_ns, smallest_bytes)
    phases = phase_rows(rows, devices)
    common = _common(rows) | {
        "devices": devices.to_dicts(), "thresholds": thresholds(empty_ns), "phases": phases.to_dicts(),
        "hints": _hints(store, rows, devices),
    }  # fmt: skip
    busy = max(int(rows["busy_ns"].sum()), 1)
    tables = [phases if by == "phase" else _grouped(rows, GROUPS[by], busy) for by in groupings]
    return [
        {"version": ROOFLINE_VERSION, "by": by, **common, "rows": table.to_dicts()}
        for by, table in zip(groupings, tables, strict=True)
    ]


def _common(rows: pl.DataFrame) -> dict[str, Any]:
    """Shares of the busy time: of what has a cost, by its source, and of what is faster than the device."""
    busy = max(int(rows["busy_ns"].sum()), 1)
    known = rows.filter(pl.col("flops").is_not_null())
    return {
        "coverage": float(known["busy_ns"].sum()) / busy,
        "sources": {name: float(known.filter(pl.col("cost_source") == name)["busy_ns"].sum()) / busy for name in _SOURCES},
        "impossible": float(rows.filter(pl.col("impossible").fill_null(value=False))["busy_ns"].sum()) / busy,
    }  # fmt: skip


def _overridden(devices: pl.DataFrame, peaks: PeakOverride, dtype: str) -> pl.DataFrame:
    """Devices with the user's peaks."""
    flops, bandwidth = peaks.peak_flops, peaks.bandwidth
    if peaks.device is not None:
        flops, bandwidth = flops or flops_of(peaks.device, dtype), bandwidth or peaks.device.bandwidth
    changed = devices.with_columns(
        peak_flops=pl.lit(flops) if flops else pl.col("peak_flops"),
        peak_bandwidth=pl.lit(bandwidth) if bandwidth else pl.col("peak_bandwidth"),
        peak_source=pl.lit("user"),
    )
    if peaks.device is not None:
        changed = changed.with_columns(link_bytes_s=pl.lit(peaks.device.peer_bytes_s, dtype=pl.Float64))
    return changed.with_columns(ridge=pl.col("peak_flops") / pl.col("peak_bandwidth"))


def _held_against(rows: pl.DataFrame, devices: pl.DataFrame, peaks: PeakOverride) -> pl.DataFrame:
    """Rows with other peaks and no verdict yet; a device given by name has a rate per type and links of its own."""
    fresh = rows.drop("peak_flops", "peak_bandwidth", "bound", "side", "roof_fraction", "impossible")
    changed = devices.select("rank", "device", "peak_flops", "peak_bandwidth", device_link="link_bytes_s")
    fresh = fresh.join(changed, on=["rank", "device"], how="left", maintain_order="left")
    if peaks.device is not None and peaks.peak_flops is None:
        rates = {dtype: flops_of(peaks.device, dtype) for dtype in rows["dtype"].drop_nulls().unique().to_list()}
        own = pl.col("dtype").replace_strict(rates, default=None, return_dtype=pl.Float64)
        fresh = fresh.with_columns(peak_flops=pl.coalesce(own, "peak_flops"))
    host = None if peaks.device is None else peaks.device.pcie_bytes_s
    fresh = fresh.with_columns(host_link=pl.lit(host, dtype=pl.Float64))
    none = pl.lit(None, dtype=pl.Float64)
    return fresh.with_columns(
        peak_bandwidth=path_bandwidth(), soft=pl.lit(False), least_bytes=none, cache_bandwidth=none
    )


def _sums(total_ns: int) -> list[pl.Expr]:
    known = pl.col("flops").is_not_null()
    fits = pl.col("roof_fraction").is_not_null() & ~pl.col("impossible").fill_null(value=False)
    costed_ns = pl.col("busy_ns").filter(known).sum()
    return [
        pl.len().alias("n"), pl.col("busy_ns").sum(), (pl.col("busy_ns").sum() / total_ns).alias("share"),
        pl.col("flops").sum(), pl.col("bytes").sum(), (costed_ns / pl.col("busy_ns").sum()).alias("coverage"),
        (pl.col("flops").sum() / costed_ns * 1e9).alias("flops_per_s"), (pl.col("bytes").sum() / costed_ns * 1e9).alias("bytes_per_s"),
        ((pl.col("roof_fraction") * pl.col("dur_ns")).filter(fits).sum() / pl.col("dur_ns").filter(fits).sum()).alias("roof_fraction"),
        pl.col("impossible").fill_null(value=False).sum().alias("impossible"),
        pl.col("cost_source").drop_nulls().unique().sort().str.join("+").alias("sources"),
        (pl.col("peak_flops").max() / pl.col("peak_bandwidth").max()).alias("ridge"),
        *(pl.col("busy_ns").filter(pl.col("bound") == bound).sum().alias(f"{bound}_ns") for bound in BOUNDS),
    ]  # fmt: skip


def _grouped(rows: pl.DataFrame, keys: list[str], total_ns: int) -> pl.DataFrame:
    """One row per group with busy time, the largest first; steps in their order."""
    placed = rows.filter(pl.col("step_id").is_not_null()) if "step_id" in keys else rows
    table = placed.group_by(keys, maintain_order=True).agg(_sums(total_ns)).filter(pl.col("busy_ns") > 0)
    known = pl.col("flops_per_s").is_not_nan() & pl.col("coverage").gt(0)
    unknown = [name for name in ("flops", "bytes", "flops_per_s", "bytes_per_s") if name in table.columns]
    table = table.with_columns(pl.when(known).then(pl.col(name)).alias(name) for name in unknown)
    table = _with_verdicts(table)
    return table if "step_id" in keys else table.sort("busy_ns", *keys, descending=[True, *[False] * len(keys)])


def _with_verdicts(table: pl.DataFrame) -> pl.DataFrame:
    """Adds intensity, side, bound (what takes most of the time) and the rest of the time as unknown_ns.

    None of them, nor the share of the roof, where most of the time has no cost.
    """
    speaks = pl.col("coverage") >= MOST_TOLD
    parts = [pl.col(f"{bound}_ns") for bound in BOUNDS]
    table = table.with_columns(
        pl.when(speaks).then(pl.col("roof_fraction").fill_nan(None)), unknown_ns=pl.col("busy_ns") - pl.sum_horizontal(parts),
        intensity=pl.when(speaks & (pl.col("bytes") > 0)).then(pl.col("flops") / pl.col("bytes")),
    )  # fmt: skip
    above, below = pl.col("intensity") >= pl.col("ridge"), pl.col("intensity") < pl.col("ridge")
    side = pl.when(above).then(pl.lit("compute")).when(below).then(pl.lit("memory"))
    most = pl.max_horizontal(parts)
    told = most > pl.col("unknown_ns")
    bound = pl.coalesce(
        pl.when((part == most) & told).then(pl.lit(name)) for part, name in zip(parts, BOUNDS, strict=True)
    )
    return table.with_columns(side=side, bound=bound)


def phase_rows(rows: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """prefill, decode and all: busy and wall ns, flops, bytes, intensity, side, MFU and MBU over device time and wall time.

    `coverage` is the share of the busy time whose cost is known, `costed_ns` that time. What has no cost counts as nothing
    done, so intensity and side are NULL below MOST_TOLD, MFU and MBU below LEAST_USED.
    """
    known = rows.filter(pl.col("flops").is_not_null())
    cells = []
    for phase in ("prefill", "decode", "all"):
        prefix = "" if phase == "all" else f"{phase}_"
        times = "busy_ns" if phase == "all" else f"{phase}_ns"
        wall = float(devices["window_ns" if phase == "all" else f"{phase}_wall_ns"].sum() or 0)
        done, moved = float(rows[f"{prefix}flops"].sum() or 0), float(rows[f"{prefix}bytes"].sum() or 0)
        asked = _Asked(
            busy_ns=int(rows[times].sum() or 0), costed_ns=int(known[times].sum() or 0), flops=done, moved=moved
        )
        cells.append(
            {"phase": phase, **_phase(asked, wall, devices["peak_flops"].max(), devices["peak_bandwidth"].max())}
        )
    table = pl.DataFrame(cells, infer_schema_length=None)
    return table.with_columns(devices=pl.lit(max(devices.height, 1))).filter(pl.col("busy_ns") > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Of a phase: device time, that of it whose cost is known, and the FLOPs and bytes of that."""

    busy_ns: int
    costed_ns: int
    flops: float
    moved: float


def _phase(asked: _Asked, wall: float, peak: Any, bandwidth: Any) -> dict[str, Any]:
    coverage = asked.costed_ns / max(asked.busy_ns, 1)
    known, told, used = coverage > 0, coverage >= MOST_TOLD, coverage >= LEAST_USED
    intensity = asked.flops / asked.moved if told and asked.moved > 0 else None
    ridge = peak / bandwidth if peak and bandwidth else None

    def share(amount: float, rate: Any, ns: float) -> float | None:
        return amount / (rate * ns / 1e9) if used and rate and ns > 0 else None

    return {
        "busy_ns": asked.busy_ns, "wall_ns": round(wall), "costed_ns": asked.costed_ns, "coverage": coverage,
        "flops": asked.flops if known else None, "bytes": asked.moved if known else None, "intensity": intensity, "ridge": ridge,
        "side": None if intensity is None or ridge is None else "compute" if intensity >= ridge else "memory",
        "mfu": share(asked.flops, peak, asked.busy_ns), "mbu": share(asked.moved, bandwidth, asked.busy_ns),
        "mfu_wall": share(asked.flops, peak, wall), "mbu_wall": share(asked.moved, bandwidth, wall),
    }  # fmt: skip


_DOUBTS = ["capture_alignment", "collectives", "cost_sources", "expert_routing", "impossible_rows"]


def _hints(store: TraceStore, rows: pl.DataFrame, devices: pl.DataFrame) -> list[str]:
    """What is missing, and what would supply it."""
    hints = []
    if devices["peak_flops"].null_count() or devices["peak_bandwidth"].null_count():
        hints.append(
            "no peaks are known for this device, so no ridge, side or bound: give --gpu NAME, or --peak-flops and --bandwidth, "
            "or measure it with `stepscope calibrate`"
        )
    uncosted = int(rows.filter(pl.col("flops").is_null())["busy_ns"].sum()) / max(int(rows["busy_ns"].sum()), 1)
    model = _model_hint(store)
    if model is not None:
        hints.append(model)
    elif uncosted > MUCH_UNCOSTED:
        hints.append(
            f"{100 * uncosted:.0f} % of device time has no cost: neither operands, nor a place in a layer of this model. Record with "
            "shapes, give --capture, or check --model-config"
        )
    messages = store.query(
        "SELECT message FROM health WHERE run_id = ? AND status <> 'ok' AND list_contains(?, check_id) ORDER BY check_id",
        [store.run_id, _DOUBTS],
    )
    return hints + messages["message"].to_list()


def _model_hint(store: TraceStore) -> str | None:
    """What is wrong with the model's configuration; None where it is known."""
    without = "costs come from recorded operands only, and sliding windows are not seen"
    config = store.query(
        "SELECT CAST(config -> 'model_config' AS VARCHAR) AS text FROM runs WHERE run_id = ?", [store.run_id]
    )
    if not isinstance(json.loads(config["text"][0] or "null"), dict):
        return f"the model is not known: {without}; give --model-config to `stepscope analyze`"
    told = store.query("SELECT message FROM health WHERE run_id = ? AND check_id = 'model_shape'", [store.run_id])
    return f"{told['message'][0]}. Without it {without}" if told.height else None
