"""FLOPs, bytes and bounds of every device activity and step of a run (method §5, §6).

Costs come from the operands of the launching operator, else of the operator a graph capture recorded for the kernel,
else from the model's configuration and where in a layer the kernel stands; every row says which (`cost_source`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from analyzers.bounds import COLLECTIVE, classified, path_bandwidth
from analyzers.costing.collectives import group_size
from analyzers.costing.contexts import StepLoads
from analyzers.costing.doubts import Doubts
from analyzers.costing.operators import Call
from analyzers.costing.sequence import layered
from analyzers.costing.sources import COSTS, chosen, from_model, from_operands, of_one_rank, operator_calls
from analyzers.costs.shape import ModelShape
from analyzers.datasheet import Device, called, flops_of, link_rate
from analyzers.hardware import Calibration, calibration_of, main_dtype, smallest
from traces.rows import first_row
from traces.store import frame, named_sql

BLOCK_ACTIVITIES = 50_000  # activities worked on at a time, whole steps
_WRITTEN = ["category", "cost_source", "dtype", "intensity", "side", "bound", "roof_fraction", "impossible"]


def fill(con: duckdb.DuckDBPyConnection, run_id: str, model: ModelShape | None) -> None:
    """Fill the cost and bound columns of `kernels` and `steps`; earlier values are replaced.

    Needs categories, phases and peaks. Where a model is not known, what only it could tell stays NULL; without peaks
    there are costs, but no side and no bound.
    """
    con.execute(named_sql("roofline_groups", "analyzers"), {"run_id": run_id})
    con.execute(named_sql("roofline_blocks", "analyzers"), {"run_id": run_id, "size": BLOCK_ACTIVITIES})
    groups = frame(con.sql("SELECT * FROM cost_group ORDER BY gid"))
    ranks = _group(con, run_id)
    calls = operator_calls(groups, ranks)
    share = of_one_rank(model, calls, may_be_shared=_may_be_shared(con, run_id))
    inputs = _Inputs(
        groups=groups.select("gid", "okid", "name", "category", "captured"), calls=calls, model=share,
        loads=_loads(con, run_id, share), peaks=_peaks(con, run_id), calibration=calibration_of(con, run_id), ranks=ranks,
    )  # fmt: skip
    doubts = Doubts(model=share, unclear=model is not None and share is None, ranks=ranks)
    for block, first, last in con.execute(
        "SELECT block, min(first_id), max(last_id) FROM cost_block GROUP BY block ORDER BY block"
    ).fetchall():
        bounds = {"run_id": run_id, "first_id": first, "last_id": last}
        rows = frame(con.sql(named_sql("roofline_rows", "analyzers"), params={**bounds, "block": block}))
        judged = _judged(rows, inputs, doubts)
        con.register("frame_to_store", judged.select(*COSTS, *_WRITTEN).to_arrow())
        con.execute("CREATE OR REPLACE TEMP TABLE roofline_cost AS SELECT * FROM frame_to_store")
        con.unregister("frame_to_store")
        con.execute(named_sql("roofline_kernels", "analyzers"), bounds)
    con.execute("DROP TABLE IF EXISTS roofline_cost")
    con.execute(named_sql("roofline_steps", "analyzers"), {"run_id": run_id})
    doubts.report(con, run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What all blocks share."""

    groups: pl.DataFrame
    calls: dict[int, Call]
    model: ModelShape | None
    loads: StepLoads
    peaks: _Peaks
    calibration: Calibration | None
    ranks: int | None  # that take part in a collective


def _judged(rows: pl.DataFrame, inputs: _Inputs, doubts: Doubts) -> pl.DataFrame:
    """Rows of one block with their cost and their bound."""
    rows = rows.join(inputs.groups, on="gid", maintain_order="left")
    rows = rows.with_columns(weight=pl.max_horizontal("dur_ns", pl.lit(1)))
    rows = layered(rows).join(_asked(inputs.loads), on="step_id", how="left", maintain_order="left")
    direct = from_operands(rows, inputs.calls, inputs.loads, inputs.model)
    modelled = from_model(rows, inputs.loads, inputs.model, inputs.ranks)
    costed = _peaked(chosen(rows, direct, modelled), inputs)
    judged = classified(costed, *smallest(inputs.calibration))
    doubts.add_sources(rows, direct, modelled)
    doubts.add_rows(costed, judged)
    return judged


def _group(con: duckdb.DuckDBPyConnection, run_id: str) -> int | None:
    """Ranks that take part in a collective; None where the run does not say."""
    row = first_row(con.execute(
        "SELECT config -> 'distributedInfo', config -> 'engine_facts' FROM runs WHERE run_id = ?", [run_id]
    ))  # fmt: skip
    try:
        return None if row is None else group_size(*(None if each is None else json.loads(each) for each in row))
    except (ValueError, RecursionError):  # a recording's, which is untrusted: a number of 5,000 digits, lists in lists
        return None


def _may_be_shared(con: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    """Several ranks took part, and the run does not say how many of them share a layer."""
    row = first_row(con.execute(
        "SELECT config ->> '$.distributedInfo.world_size', config ->> '$.engine_facts.tensor_parallel_size' FROM runs "
        "WHERE run_id = ?", [run_id],
    ))  # fmt: skip
    return row is not None and row[1] is None and str(row[0]).isdecimal() and int(row[0]) > 1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peaks:
    """Rates of the run's devices: `main` is the run's main type, which `devices` has the rate of."""

    main: str | None
    devices: pl.DataFrame  # as sql/roofline_peaks.sql


def _peaks(con: duckdb.DuckDBPyConnection, run_id: str) -> _Peaks:
    devices = frame(con.sql(named_sql("roofline_peaks", "analyzers"), params={"run_id": run_id}))
    return _Peaks(main=main_dtype(con, run_id), devices=devices)


def _peaked(rows: pl.DataFrame, inputs: _Inputs) -> pl.DataFrame:
    """Adds peak_flops, peak_bandwidth and cache_bandwidth: the device's rates in the type of each row.

    A datasheet's rate in another type than the run's main one replaces that, nothing else can. Copies from and to the
    host and collectives have their link's rate where the datasheet has it, else none: the memory is not what they wait for.
    """
    main = inputs.peaks.main
    products = pl.col("category").is_in(["gemm", "logits", "attention", "moe"]) & pl.col("flops").is_not_null()
    rows = rows.with_columns(dtype=pl.coalesce("dtype", pl.when(products).then(pl.lit(main, dtype=pl.String))))
    cells = []
    for rank, device, name, flops, bandwidth, source in inputs.peaks.devices.rows():
        sheet = _sheet(name, flops, main) if source == "datasheet" else None
        for dtype in rows["dtype"].unique().to_list():
            own = flops_of(sheet, dtype) if sheet is not None and dtype not in (None, main) else None
            host = sheet.pcie_bytes_s if sheet is not None else None
            cells.append((rank, device, dtype, own or flops, bandwidth, source == "calibrated", host, link_rate(name)))
    names = {"rank": pl.Int32, "device": pl.Int32, "dtype": pl.String, "peak_flops": pl.Float64,
             "peak_bandwidth": pl.Float64, "measured": pl.Boolean, "host_link": pl.Float64, "device_link": pl.Float64}  # fmt: skip
    peaks = pl.DataFrame(cells, schema=names, orient="row")
    peaked = rows.join(peaks, on=["rank", "device", "dtype"], how="left", nulls_equal=True, maintain_order="left")
    cache = pl.Series(_cache_bandwidth(peaked["bytes"].fill_null(0).to_numpy(), inputs.calibration)).fill_nan(None)
    memory = pl.col("category").ne_missing(COLLECTIVE)
    return peaked.with_columns(
        cache_bandwidth=pl.when(pl.col("measured") & memory).then(cache), peak_bandwidth=path_bandwidth()
    )


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
    return next((each for each in called(name) if flops_of(each, main) == flops), None)
