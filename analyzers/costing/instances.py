"""One operator, several activities: its cost is given once, divided over them by time."""

from __future__ import annotations

import polars as pl

_DEVICE = ["rank", "device", "stream"]


def shares(rows: pl.DataFrame) -> pl.DataFrame:
    """kernel_id and `share` (0..1) of one call's cost, for rows in device order with gid, okid, category, op_start_ns.

    On a CPU a call is what began at op_start_ns. On a GPU, neighbours on a stream with the same operator and operands
    are one call until the kernel that takes most of its time comes again.
    """
    on_cpu = rows.filter(pl.col("op_start_ns").is_not_null())
    calls = on_cpu.select("kernel_id", "weight", call=pl.struct(*_DEVICE, "op_start_ns", "gid"))
    return pl.concat([
        calls.select("kernel_id", share=pl.col("weight") / pl.col("weight").sum().over("call")),
        _launched(rows.filter(pl.col("op_start_ns").is_null() & pl.col("okid").is_not_null())),
    ])  # fmt: skip


def _launched(rows: pl.DataFrame) -> pl.DataFrame:
    main = (
        rows.group_by("okid", "category", "gid").agg(pl.col("weight").sum())
        .sort("weight", "gid", descending=[True, False])
        .group_by("okid", "category", maintain_order=True).agg(pl.col("gid").first().alias("main_gid"))
    )  # fmt: skip
    turned = (pl.col("okid") != pl.col("okid").shift(1).over(_DEVICE)).fill_null(value=True)
    runs = rows.with_columns(stretch=turned.cum_sum().over(_DEVICE)).join(
        main, on=["okid", "category"], how="left", maintain_order="left"
    )
    same = [*_DEVICE, "stretch", "category"]
    runs = runs.with_columns(
        turn=pl.int_range(pl.len()).over([*same, "gid"]) + 1,
        turns=(pl.col("gid") == pl.col("main_gid")).sum().over(same),
    )
    call = [*same, pl.min_horizontal("turn", pl.max_horizontal("turns", pl.lit(1)))]
    return runs.select("kernel_id", share=pl.col("weight") / pl.col("weight").sum().over(call))
