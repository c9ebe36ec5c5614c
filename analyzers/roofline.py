"""FLOPs, bytes and bounds of every device activity and step of a run (method §5, §6).

Costs come from the operands of the launching operator, else of the operator a graph capture recorded for the kernel,
else from the model's configuration and where in a layer the kernel stands; every row says which (`cost_source`).
"""

from __future__ import annotations

import json

import duckdb
import polars as pl

from analyzers.bounds import classified
from analyzers.costing.contexts import StepLoads
from analyzers.costing.sequence import layered
from analyzers.costing.sources import COSTS, chosen, from_model, from_operands, of_one_rank, operator_calls
from analyzers.costs.shape import ModelShape
from analyzers.datasheet import Device, catalogue, flops_of, plain_name
from analyzers.hardware import calibration_of, main_dtype
from traces.store import frame, named_sql

SOURCES_AGREE = 0.05  # of two sources' FLOPs per category


def fill(con: duckdb.DuckDBPyConnection, run_id: str, model: ModelShape | None) -> None:
    """Fill the cost and bound columns of `kernels` and `steps`; earlier values are replaced.

    Needs categories, phases and peaks. Where a model is not known, what only it could tell stays NULL.
    """
    groups, rows = _rows(con, run_id)
    if not rows.height:
        return
    calls = operator_calls(groups)
    model = of_one_rank(model, calls)
    rows = layered(rows)
    loads = _loads(con, run_id, model)
    rows = rows.join(_asked(loads), on="step_id", how="left", maintain_order="left")
    direct = from_operands(rows, calls, loads, model)
    modelled = from_model(rows, loads, model)
    _check_sources(con, run_id, rows, direct, modelled)
    costed = chosen(rows, direct, modelled, groups)
    calibration = calibration_of(con, run_id)
    empty_ns = calibration.launch_ns if calibration is not None else None
    peaked = costed.join(_peaks(con, run_id, costed), on=["rank", "device", "dtype"], how="left", nulls_equal=True)
    judged = classified(peaked, empty_ns)
    _check_rows(con, run_id, peaked, judged)
    _store(con, "roofline_cost", judged.select(
        *COSTS, "category", "cost_source", "dtype", "intensity", "side", "bound", "roof_fraction", "impossible",
    ))  # fmt: skip
    con.execute(named_sql("roofline_kernels", "analyzers"), {"run_id": run_id})
    con.execute(named_sql("roofline_steps", "analyzers"), {"run_id": run_id})


def _rows(con: duckdb.DuckDBPyConnection, run_id: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Groups of activities that a cost is worked out for once, and the activities in device order."""
    con.execute(named_sql("roofline_groups", "analyzers"), {"run_id": run_id})
    groups = frame(con.sql("SELECT * FROM cost_group ORDER BY gid"))
    rows = frame(con.sql(named_sql("roofline_rows", "analyzers"), params={"run_id": run_id}))
    rows = rows.join(groups.select("gid", "okid", "name", "category", "captured"), on="gid", maintain_order="left")
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


def _peaks(con: duckdb.DuckDBPyConnection, run_id: str, rows: pl.DataFrame) -> pl.DataFrame:
    """rank, device, dtype, peak_flops, peak_bandwidth: the device's rates in the type of each row.

    Devices hold the rate of the run's main type; a datasheet's rate in another type replaces it, nothing else can.
    """
    main = main_dtype(con, run_id)
    devices = con.execute("SELECT rank, device, name, peak_flops, peak_bandwidth, peak_source FROM devices WHERE run_id = ?", [run_id]).fetchall()
    cells = []
    for rank, device, name, flops, bandwidth, source in devices:
        sheet = _sheet(name, flops, main) if source == "datasheet" else None
        for dtype in rows["dtype"].unique().to_list():
            own = flops_of(sheet, dtype) if sheet is not None and dtype is not None and dtype != main else None
            cells.append((rank, device, dtype, own or flops, bandwidth))
    names = {"rank": pl.Int32, "device": pl.Int32, "dtype": pl.String, "peak_flops": pl.Float64, "peak_bandwidth": pl.Float64}
    return pl.DataFrame(cells, schema=names, orient="row")


def _sheet(name: str | None, flops: float | None, main: str | None) -> Device | None:
    """The catalogue's device that these peaks were taken from; --gpu may have named another than the recording."""
    if name is None:
        return None
    key = plain_name(name)
    fitting = [each for each in catalogue() if key in {plain_name(known) for known in each.driver_names}]
    return next((each for each in fitting if flops_of(each, main) == flops), None)


def _check_sources(con: duckdb.DuckDBPyConnection, run_id: str, rows: pl.DataFrame, direct: pl.DataFrame, modelled: pl.DataFrame) -> None:
    """Table `health`: do operands and configuration agree on the FLOPs of the rows that both explain?"""
    con.execute("DELETE FROM health WHERE run_id = ? AND check_id = 'cost_sources'", [run_id])
    both = direct.join(modelled, on="kernel_id", suffix="_model").join(rows.select("kernel_id", "category"), on="kernel_id")
    sums = both.filter(pl.col("category").is_in(["gemm", "logits", "attention", "moe"])).group_by("category").agg(pl.col("flops", "flops_model").sum())
    off = {
        str(category): model / shapes - 1 for category, shapes, model in sums.select("category", "flops", "flops_model").rows() if shapes
    }
    if not off:
        return
    worst = max(abs(value) for value in off.values())
    apart = ", ".join(f"{name} {100 * value:+.1f} %" for name, value in sorted(off.items()) if abs(value) > SOURCES_AGREE)
    message = (
        f"the model's configuration gives other FLOPs than the recorded operands ({apart}): is it the model that ran? Give the right one with --model-config"
        if apart else "recorded operands and the model's configuration give the same FLOPs"
    )  # fmt: skip
    con.execute(
        "INSERT INTO health (run_id, rank, check_id, status, value, threshold, affects, message) VALUES (?, NULL, 'cost_sources', ?, ?, ?, ?, ?)",
        [run_id, "warning" if apart else "ok", worst, SOURCES_AGREE, json.dumps(["kernels.flops", "kernels.bytes", "steps.flops"]), message],
    )


def _store(con: duckdb.DuckDBPyConnection, table: str, data: pl.DataFrame) -> None:
    con.register("frame_to_store", data.to_arrow())
    con.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT * FROM frame_to_store")
    con.unregister("frame_to_store")


def _check_rows(con: duckdb.DuckDBPyConnection, run_id: str, peaked: pl.DataFrame, judged: pl.DataFrame) -> None:
    """Table `health`: rows faster than the device, and experts that uniform routing would read too many of."""
    con.execute("DELETE FROM health WHERE run_id = ? AND check_id IN ('impossible_rows', 'expert_routing')", [run_id])
    busy = max(int(judged["busy_ns"].sum()), 1)
    beyond = judged.filter(pl.col("impossible"))
    if beyond.height:
        worst = beyond.sort("roof_fraction", descending=True).row(0, named=True)
        _health(
            con, run_id, "impossible_rows", float(beyond["busy_ns"].sum()) / busy, 0.0, ["kernels.side", "kernels.bound"],
            f"{beyond.height} activities would be faster than the device can be, up to {worst['roof_fraction']:.2f} of its roof "
            f"({worst['category']}, cost from {worst['cost_source']}): the peak, the operands or the model is not right; they get no side and "
            "no bound. Say which device with --gpu, or --peak-flops and --bandwidth",
        )  # fmt: skip
    expected = peaked.filter(pl.col("least_bytes").is_not_null()).select("kernel_id", expected="bytes")
    fewer = judged.join(expected, on="kernel_id").filter(pl.col("bytes") < pl.col("expected"))
    if fewer.height:
        _health(
            con, run_id, "expert_routing", 1 - float(fewer["bytes"].sum()) / float(fewer["expected"].sum()), 0.0, ["kernels.bytes", "steps.bytes"],
            f"{fewer.height} expert kernels took less time than reading the experts that uniform routing reaches: these tokens route alike. Their "
            "bytes are what the device could read at most in that time, and their roof fractions upper limits",
        )  # fmt: skip


def _health(con: duckdb.DuckDBPyConnection, run_id: str, check: str, value: float, threshold: float, affects: list[str], message: str) -> None:
    con.execute(
        "INSERT INTO health (run_id, rank, check_id, status, value, threshold, affects, message) VALUES (?, NULL, ?, 'warning', ?, ?, ?, ?)",
        [run_id, check, value, threshold, json.dumps(affects), message],
    )
