"""FLOPs, bytes and bounds of every device activity and step of a run (method §5, §6).

Costs come from the operands of the launching operator, else of the operator a graph capture recorded for the kernel,
else from the model's configuration and where in a layer the kernel stands; every row says which (`cost_source`).
"""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl

from analyzers.bounds import classified
from analyzers.costing.contexts import StepLoads
from analyzers.costing.doubts import check_rows, check_sources
from analyzers.costing.sequence import layered
from analyzers.costing.sources import COSTS, chosen, from_model, from_operands, of_one_rank, operator_calls
from analyzers.costs.shape import ModelShape
from analyzers.datasheet import Device, catalogue, flops_of, plain_name
from analyzers.hardware import Calibration, calibration_of, main_dtype
from traces.store import frame, named_sql

_WRITTEN = ["category", "cost_source", "dtype", "intensity", "side", "bound", "roof_fraction", "impossible"]


def fill(con: duckdb.DuckDBPyConnection, run_id: str, model: ModelShape | None) -> None:
    """Fill the cost and bound columns of `kernels` and `steps`; earlier values are replaced.

    Needs categories, phases and peaks. Where a model is not known, what only it could tell stays NULL; without peaks
    there are costs, but no side and no bound.
    """
    groups, rows = _rows(con, run_id)
    if not rows.height:
        return
    calls = operator_calls(groups)
    model = of_one_rank(model, calls)
    loads = _loads(con, run_id, model)
    rows = layered(rows).join(_asked(loads), on="step_id", how="left", maintain_order="left")
    direct = from_operands(rows, calls, loads, model)
    modelled = from_model(rows, loads, model)
    check_sources(con, run_id, rows, direct, modelled, model)
    calibration = calibration_of(con, run_id)
    costed = _peaked(con, run_id, chosen(rows, direct, modelled), calibration)
    judged = classified(costed, None if calibration is None else calibration.launch_ns)
    check_rows(con, run_id, costed, judged)
    con.register("frame_to_store", judged.select(*COSTS, *_WRITTEN).to_arrow())
    con.execute("CREATE OR REPLACE TEMP TABLE roofline_cost AS SELECT * FROM frame_to_store")
    con.unregister("frame_to_store")
    con.execute(named_sql("roofline_kernels", "analyzers"), {"run_id": run_id})
    con.execute(named_sql("roofline_steps", "analyzers"), {"run_id": run_id})


def _rows(con: duckdb.DuckDBPyConnection, run_id: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Groups of activities that a cost is worked out for once, and the activities in device order."""
    con.execute(named_sql("roofline_groups", "analyzers"), {"run_id": run_id})
    groups = frame(con.sql("SELECT * FROM cost_group ORDER BY gid"))
    rows = frame(con.sql(named_sql("roofline_rows", "analyzers"), params={"run_id": run_id}))
    known = groups.select("gid", "okid", "name", "category", "captured")
    rows = rows.join(known, on="gid", maintain_order="left")
    return groups, rows.with_columns(weight=pl.max_horizontal("dur_ns", pl.lit(1)))


def _loads(con: duckdb.DuckDBPyConnection, run_id: str, model: ModelShape | None) -> StepLoads:
    spans = [span for span in (model.window_counts if model is not None else ()) if span is not None]
    return StepLoads(
        steps=frame(con.sql(named_sql("phases_steps", "analyzers"), params={"run_id": run_id})),
        windows=frame(con.sql(named_sql("roofline_windows", "analyzers"), params={"run_id": run_id, "spans": spans})),
    )


def _asked(loads: StepLoads) -> pl.DataFrame:
    """Per step its kind, and rows that its kernels work on."""
    return loads.steps.select(
        "step_id", kind="kind", tokens=pl.col("prefill_tokens") + pl.col("decode_tokens"),
        sampled=pl.col("prefill_sampled") + pl.col("decode_sampled"),
    )  # fmt: skip


def _peaked(
    con: duckdb.DuckDBPyConnection, run_id: str, rows: pl.DataFrame, calibration: Calibration | None
) -> pl.DataFrame:
    """Adds peak_flops, peak_bandwidth and cache_bandwidth: the device's rates in the type of each row.

    Devices hold the rate of the run's main type; a datasheet's rate in another type replaces it, nothing else can.
    """
    main = main_dtype(con, run_id)
    devices = frame(con.sql(named_sql("roofline_peaks", "analyzers"), params={"run_id": run_id}))
    cells = []
    for rank, device, name, flops, bandwidth, source in devices.rows():
        sheet = _sheet(name, flops, main) if source == "datasheet" else None
        for dtype in rows["dtype"].unique().to_list():
            own = flops_of(sheet, dtype) if sheet is not None and dtype not in (None, main) else None
            cells.append((rank, device, dtype, own or flops, bandwidth, source == "calibrated"))
    names = {"rank": pl.Int32, "device": pl.Int32, "dtype": pl.String, "peak_flops": pl.Float64,
             "peak_bandwidth": pl.Float64, "measured": pl.Boolean}  # fmt: skip
    peaks = pl.DataFrame(cells, schema=names, orient="row")
    peaked = rows.join(peaks, on=["rank", "device", "dtype"], how="left", nulls_equal=True, maintain_order="left")
    cache = pl.Series(_cache_bandwidth(peaked["bytes"].fill_null(0).to_numpy(), calibration)).fill_nan(None)
    return peaked.with_columns(cache_bandwidth=pl.when("measured").then(cache))


def _cache_bandwidth(
    bytes_moved: np.ndarray[tuple[int], np.dtype[np.float64]], calibration: Calibration | None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes/s that data of each size was read at, caches included; NaN where that was not measured."""
    sizes = sorted({rate.working_set_bytes for rate in calibration.memory}) if calibration is not None else []
    if calibration is None or not sizes:
        return np.full(len(bytes_moved), np.nan)
    rates = np.array([calibration.bandwidth_for(size) or np.nan for size in sizes])
    return rates[np.clip(np.searchsorted(sizes, bytes_moved, side="right") - 1, 0, None)]


def _sheet(name: str | None, flops: float | None, main: str | None) -> Device | None:
    """The catalogue's device that these peaks were taken from; --gpu may have named another than the recording."""
    if name is None:
        return None
    key = plain_name(name)
    fitting = [each for each in catalogue() if key in {plain_name(known) for known in each.driver_names}]
    return next((each for each in fitting if flops_of(each, main) == flops), None)
