"""The layers of a model as they show in the order of a step's kernels.

Attention is the period: a layer's matrix products lie between two attention calls, and what lies before the first or
behind the last belongs to the first layer's entry and to the head. No names of layers are needed, so graphs work too.
"""

from __future__ import annotations

import re

import polars as pl

STEP = ["rank", "device", "step_id"]
# Work for an attention call that is done once per step, outside the layers.
_ONCE_PER_STEP = r"(?i)metadata|prepare_varlen|num_blocks|kv_indices|scheduler"
# Second kernels of a matrix product: they add up partial sums or clear them.
_SECOND = r"(?i)split_?k_?reduce|reduce_?split|splitKreduce|^void cublasLt::.*reduce|_zero_|gemmk1"
SECOND = re.compile(_SECOND)


def layered(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds to rows in device order, which have `category` and `name`:

    layer     attention calls that began up to here in the step: 0 before the first, i + 1 from layer i's attention on
    layers    of the whole step
    product   matrix products that began since the layer's attention, 1 for the first
    products  of them until the next attention
    """
    attends = (pl.col("category") == "attention") & ~pl.col("name").str.contains(_ONCE_PER_STEP).fill_null(value=False)
    multiplies = pl.col("category").is_in(["gemm", "logits"]) & ~pl.col("name").str.contains(_SECOND).fill_null(
        value=False
    )
    marked = rows.with_columns(attends=attends, multiplies=multiplies)
    anchors = marked.filter((pl.col("attends") | pl.col("multiplies")) & pl.col("step_id").is_not_null())
    before = pl.col("attends").shift(1).over(STEP)
    same_call = (pl.col("op_start_ns") == pl.col("op_start_ns").shift(1).over(STEP)).fill_null(value=False)
    anchors = anchors.select(
        "kernel_id",
        opens=pl.col("attends") & ~before.fill_null(value=False),
        begins=pl.col("multiplies") & ~(same_call & ~before.fill_null(value=False)),
    )
    placed = marked.join(anchors, on="kernel_id", how="left", maintain_order="left").with_columns(
        pl.col("opens", "begins").fill_null(value=False)
    )
    placed = placed.with_columns(layer=pl.col("opens").cum_sum().over(STEP))
    placed = placed.with_columns(
        layers=pl.col("layer").max().over(STEP), product=pl.col("begins").cum_sum().over([*STEP, "layer"]).cast(pl.Int64),
    )  # fmt: skip
    return placed.with_columns(products=pl.col("product").max().over([*STEP, "layer"])).drop("opens", "begins")
