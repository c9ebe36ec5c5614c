"""How steady the engine was within a pass, and whether the machine had processor time to spare.

Requests that are served side by side slow down together. Drawing them again does not show that; blocks of time do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzers.comparison.sides import Part, Pass, Side
from analyzers.comparison.strata import with_strata

TIME_BLOCKS = 8
_LEAST_BLOCKS = 3
CROWDED_FROM = 0.95  # mean use of all processors in a pass
OTHERS_FROM = 0.10  # of it by others than the engine and its client, which keep two cores busy by waiting


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
    passes = [item for side in sides for item in side.passes if any(item.part is part for part in parts)]
    busiest = [_busiest(part, passes) for part in parts]
    if None in busiest:
        return "whether the machine's processors had time to spare is not recorded"
    busy = max(value for value in busiest if value is not None)
    if busy <= CROWDED_FROM:
        return None
    taken = [_others(item) for item in passes]
    if not taken or None in taken:
        return f"the machine's processors were {100 * busy:.0f} % busy"
    most = max(value for value in taken if value is not None)
    return f"others took {100 * most:.0f} % of the machine's processor time" if most > OTHERS_FROM else None


def _busiest(part: Part, passes: Sequence[Pass]) -> float | None:
    """Largest mean use of all processors in a pass of `part` (in the run, where it has none); None where it was not sampled."""
    sql = "SELECT ts_ns, cpu_util FROM telemetry WHERE run_id = ? AND cpu_util IS NOT NULL"
    data = part.store.query(sql, [part.store.run_id])
    if not data.height:
        return None
    busiest = 0.0
    for start, end in [(item.start_ns, item.end_ns) for item in passes if item.part is part] or [(None, None)]:
        during = data if start is None or end is None else data.filter(pl.col("ts_ns").is_between(start, end))
        if during.height:
            busiest = max(busiest, float(during["cpu_util"].to_numpy().mean()))
    return busiest


def _others(item: Pass) -> float | None:
    """Share of the processors' time that others took in a pass, as its manifest says; a warm-up comes several times."""
    listed = item.part.facts["config"].get("passes")
    known = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    shares = [each.get("others_cpu") for each in known if each.get("name") == item.name]
    found = [float(share) for share in shares if isinstance(share, int | float) and 0 <= share <= 1]
    return max(found) if found and len(found) == len(shares) else None
