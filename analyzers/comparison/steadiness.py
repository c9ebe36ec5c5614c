"""How steady the engine was within a pass, and whether the machine had processor time to spare.

Requests that are served side by side slow down together. Drawing them again does not show that; blocks of time do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzers.comparison.sides import Pass, Side
from analyzers.comparison.strata import with_strata

TIME_BLOCKS = 8
_LEAST_BLOCKS = 3
CROWDED_FROM = 0.95  # mean use of all processors in a pass


def speed_variance(item: Pass) -> float:
    """Variance of the logarithm of a pass's mean speed, by blocks of its time taken as independent; 0 without a step ledger."""
    steps = with_strata(item.part.of_pass(item.name, item.part.read("ledger")))
    like = (
        steps.with_columns(usual=pl.col("step_ns").mean().over("stratum"), n=pl.len().over("stratum"))
        .filter(pl.col("n") > 1)
    )  # fmt: skip
    if not like.height:
        return 0.0
    begin, end = like["start_ns"].to_numpy().min(), like["start_ns"].to_numpy().max() + 1
    blocks = (
        like.with_columns(block=(pl.col("start_ns") - begin) * TIME_BLOCKS // (end - begin))
        .group_by("block").agg(speed=pl.col("step_ns").sum() / pl.col("usual").sum())
    )  # fmt: skip
    if blocks.height < _LEAST_BLOCKS:
        return 0.0
    return float(np.var(np.log(blocks["speed"].to_numpy()), ddof=1)) / blocks.height


def crowded(sides: Sequence[Side]) -> str | None:
    """Why others may have taken processor time from an engine that runs on it, in words; None where they have not."""
    parts = [part for side in sides for part in side.parts if part.facts.get("device_kind") == "cpu"]
    if not parts:
        return None
    sql = "SELECT ts_ns, cpu_util FROM telemetry WHERE run_id = ? AND cpu_util IS NOT NULL"
    samples = [part.store.query(sql, [part.store.run_id]) for part in parts]
    if not all(data.height for data in samples):
        return "whether the machine's processors had time to spare is not recorded"
    busiest = 0.0
    for part, data in zip(parts, samples, strict=True):
        spans = [(item.start_ns, item.end_ns) for side in sides for item in side.passes if item.part is part]
        for start, end in spans or [(None, None)]:
            during = data if start is None or end is None else data.filter(pl.col("ts_ns").is_between(start, end))
            if during.height:
                busiest = max(busiest, float(during["cpu_util"].to_numpy().mean()))
    return f"the machine's processors were {100 * busiest:.0f} % busy" if busiest > CROWDED_FROM else None
