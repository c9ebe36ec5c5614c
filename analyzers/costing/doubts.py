"""What speaks against the costs of a run, as rows of table `health`."""

from __future__ import annotations

import json

import duckdb
import polars as pl

from analyzers.costs.shape import ModelShape
from traces.store import named_sql

SOURCES_AGREE = 0.05  # of two sources' FLOPs per category
_AFFECTED = ["kernels.flops", "kernels.bytes", "steps.flops"]
_COMPARED = ("gemm", "logits", "attention", "moe")


def forget(con: duckdb.DuckDBPyConnection, run_id: str, *checks: str) -> None:
    """Remove what an earlier analysis said."""
    con.execute("DELETE FROM health WHERE run_id = ? AND list_contains(?, check_id)", [run_id, list(checks)])


def say(
    con: duckdb.DuckDBPyConnection, run_id: str, check_id: str, message: str, affects: list[str], *,
    ok: bool = False, value: float, threshold: float,
) -> None:  # fmt: skip
    """Add one row, 'ok' or 'warning'."""
    con.execute(named_sql("roofline_health", "analyzers"), {
        "run_id": run_id, "check_id": check_id, "status": "ok" if ok else "warning", "value": value,
        "threshold": threshold, "affects": json.dumps(affects), "message": message,
    })  # fmt: skip


def check_sources(
    con: duckdb.DuckDBPyConnection, run_id: str, rows: pl.DataFrame, direct: pl.DataFrame, modelled: pl.DataFrame,
    model: ModelShape | None,
) -> None:  # fmt: skip
    """Do operands and configuration give the same FLOPs for the activities that both explain, and as many layers?"""
    forget(con, run_id, "cost_sources")
    seen = rows.filter(pl.col("tokens") > 0)["layers"].max()
    if model is not None and isinstance(seen, int) and seen > 0 and not (rows["layers"] == model.layers).any():
        message = (
            f"steps have up to {seen} attention calls, the model has {model.layers} layers, so nothing of its configuration can be "
            "used: is it the model that ran, and all of it (not a stage of a pipeline)? Give the right one with --model-config"
        )
        say(con, run_id, "cost_sources", message, _AFFECTED, value=seen / model.layers - 1, threshold=0.0)
        return
    both = direct.join(modelled, on="kernel_id", suffix="_model").join(
        rows.select("kernel_id", "category"), on="kernel_id"
    )
    both = both.filter(pl.col("category").is_in(_COMPARED))
    sums = both.group_by("category").agg(pl.col("flops", "flops_model").sum()).filter(pl.col("flops") > 0)
    off = {
        str(name): model / shapes - 1 for name, shapes, model in sums.select("category", "flops", "flops_model").rows()
    }
    if not off:
        return
    apart = ", ".join(f"{name} {100 * x:+.1f} %" for name, x in sorted(off.items()) if abs(x) > SOURCES_AGREE)
    message = "recorded operands and the model's configuration give the same FLOPs"
    if apart:
        message = (
            f"the model's configuration gives other FLOPs than the recorded operands ({apart}): is it the model that ran? "
            "Give the right one with --model-config"
        )
    say(
        con, run_id, "cost_sources", message, _AFFECTED, ok=not apart, value=max(abs(x) for x in off.values()), threshold=SOURCES_AGREE,
    )  # fmt: skip


def check_rows(con: duckdb.DuckDBPyConnection, run_id: str, costed: pl.DataFrame, judged: pl.DataFrame) -> None:
    """Activities faster than the device, and experts that uniform routing would read too many of."""
    forget(con, run_id, "impossible_rows", "expert_routing")
    beyond = judged.filter(pl.col("impossible"))
    if beyond.height:
        worst = beyond.sort("busy_ns", descending=True).row(0, named=True)
        message = (
            f"{beyond.height:,} activities would be faster than the device can be, by time first {worst['category']} at "
            f"{worst['roof_fraction']:.2f} of its roof (cost from {worst['cost_source']}): peak, operands or model are not right, "
            "so they get no side and no bound. Say what the device can do with --gpu, or --peak-flops and --bandwidth"
        )
        share = float(beyond["busy_ns"].sum()) / max(int(judged["busy_ns"].sum()), 1)
        say(con, run_id, "impossible_rows", message, ["kernels.side", "kernels.bound"], value=share, threshold=0.0)
    expected = costed.filter(pl.col("least_bytes").is_not_null()).select("kernel_id", expected="bytes")
    fewer = judged.join(expected, on="kernel_id").filter(pl.col("bytes") < pl.col("expected"))
    if fewer.height:
        message = (
            f"{fewer.height:,} expert kernels took less time than reading the experts that uniform routing reaches: these tokens "
            "route alike. Their bytes are what the device could read at most in that time, their roof fractions upper limits"
        )
        missing = 1 - float(fewer["bytes"].sum()) / float(fewer["expected"].sum())
        say(con, run_id, "expert_routing", message, ["kernels.bytes", "steps.bytes"], value=missing, threshold=0.0)
