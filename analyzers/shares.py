"""Each request's part of a step's device time: a phase's nanoseconds divided by what its requests cost.

Within one phase of one step, a category's time is divided by cost: attention by each request's own context, logits and
sampling by sampled rows, everything else by new tokens. The parts are integers and sum to the phase's time exactly.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.features import features
from analyzers.split import Learned

Floats = NDArray[np.float64]

BY_SAMPLED_ROWS = frozenset({"logits", "sampling"})


def device_ns(learned: Learned, parts: pl.DataFrame, requests: pl.DataFrame) -> pl.Series:
    """Device time of every row of `requests`, in their order, ns.

    `parts` comes from `split.split`. `requests` has one row per step, request and phase: step (as in parts), side
    ('prefill', recompute included, or 'decode', verification included), new_tokens, context_tokens (computed before
    the step), sampled (rows that get logits). Time of a phase that has no request stays undivided.
    """
    rows = requests.with_row_index("row")
    long = parts.unpivot(
        on=["prefill_ns", "decode_ns"], index=["step", "category"], variable_name="side", value_name="ns"
    ).with_columns(pl.col("side").str.strip_suffix("_ns"))
    weighted = [
        rows.select(
            "row", "step", "side", category=pl.lit(category), weight=pl.Series(_weights(learned, rows, category))
        )
        for category in parts["category"].unique().sort().to_list()
    ]
    if not weighted:
        return pl.Series("device_ns", [0] * rows.height, dtype=pl.Int64)
    group = ["step", "side", "category"]
    exact = (
        pl.concat(weighted)
        .with_columns(pl.col("weight") / pl.col("weight").sum().over(group))
        .join(long, on=group, how="inner")
        .group_by("row", "step", "side")
        .agg((pl.col("weight") * pl.col("ns")).sum().alias("exact"))
    )
    totals = long.group_by("step", "side").agg(pl.col("ns").sum())
    whole = _whole(exact.join(totals, on=["step", "side"]))
    return rows.join(whole, on="row", how="left").sort("row")["device_ns"].fill_null(0)


def _weights(learned: Learned, rows: pl.DataFrame, category: str) -> Floats:
    """What each request costs in `category`, positive."""
    tokens = rows["new_tokens"].to_numpy().astype(np.float64)
    weight = tokens
    if category in BY_SAMPLED_ROWS:
        weight = rows["sampled"].to_numpy().astype(np.float64)
    elif category == "attention" and learned.rates.get(category):
        weight = _attention_weights(learned, rows, tokens)
    # where nobody has a weight of this kind (no sampled row), tokens decide
    positive: Floats = weight + 1e-9 * np.maximum(tokens, 1)
    return positive


def _attention_weights(learned: Learned, rows: pl.DataFrame, tokens: Floats) -> Floats:
    k = tokens + rows["context_tokens"].to_numpy()
    prefill = rows["side"].to_numpy() == "prefill"

    def one(chosen: NDArray[np.bool_], *, prompts: bool) -> PhaseLoad:
        q, c, n = np.where(chosen, tokens, 0), np.where(chosen, k, 0), chosen.astype(np.float64)
        return PhaseLoad(reqs=n, tokens=q, kv_tokens=c, qq=q * q, qk=q * c, sampled_rows=n, prompts=prompts)

    given = features(learned.model, "attention", one(prefill, prompts=True), one(~prefill, prompts=False))
    theta = learned.rates["attention"][0].theta[given.joint.shape[1] :]
    weight: Floats = given.own @ theta
    return weight


def _whole(exact: pl.DataFrame) -> pl.DataFrame:
    """Round to integers that sum to `ns` of their phase: the largest remainders get the missing nanoseconds."""
    floor = exact.with_columns(pl.col("exact").floor().cast(pl.Int64).alias("device_ns"))
    missing = pl.col("ns") - pl.col("device_ns").sum().over("step", "side")
    place = (pl.col("exact") - pl.col("device_ns")).rank("ordinal", descending=True).over("step", "side")
    # rounding errors can leave the floors above the total; then the smallest remainders give back
    last = (pl.col("exact") - pl.col("device_ns")).rank("ordinal").over("step", "side")
    return floor.select(
        "row",
        device_ns=pl.col("device_ns") + (place <= missing).cast(pl.Int64) - (last <= -missing).cast(pl.Int64),
    )
