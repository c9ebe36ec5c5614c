"""Steps of like size: what makes a step of one run comparable with one of another (same kind, similar batch and tokens).

A stratum is a step kind with classes of decoding requests, prefill tokens and context. Counts up to 8 are a class of their own,
above that a class is 25 % wide (tokens 50 %, context a factor of 2). Within a class sides may still differ by a part of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzers.comparison.sample import Floats, Ratio

BLOCKS = 20  # of consecutive steps of a kind, drawn as a whole
KINDS = ("prefill", "decode", "mixed", "other")
_EXACT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One number of the steps of one kind: a Ratio per pass, and the smaller share of a side's time that is in strata both have."""

    base: tuple[Ratio, ...]
    cand: tuple[Ratio, ...]
    share: float


def with_strata(steps: pl.DataFrame) -> pl.DataFrame:
    """`steps` (compare_ledger.sql or compare_steps.sql) of one pass with `stratum` and `block`, in their order."""
    reqs = pl.col("decode_reqs")
    per_req = pl.when(reqs > 0).then(pl.col("decode_context_tokens") / reqs).otherwise(0)
    return steps.with_columns(
        stratum=pl.concat_str(
            [
                pl.col("kind"), _class(reqs, 1.25), _class(pl.col("prefill_tokens"), 1.5),
                _class(pl.col("prefill_context_tokens"), 2.0), _class(per_req, 2.0),
            ],
            separator="|",
        ),
        block=(pl.int_range(pl.len()).over("kind") * BLOCKS // pl.len().over("kind")).cast(pl.Int64),
    )  # fmt: skip


def _class(value: pl.Expr, width: float) -> pl.Expr:
    wide = (value.clip(lower_bound=_EXACT).cast(pl.Float64).log() / float(np.log(width))).floor() + 1000
    return pl.when(value <= _EXACT).then(value.cast(pl.Float64)).otherwise(wide).cast(pl.Int64).cast(pl.String)


def per_output_token(steps: Sequence[pl.DataFrame]) -> bool:
    """Whether decode steps may be told per accepted token; False where that is not known of one of them."""
    return all(data.filter(pl.col("decode_reqs") > 0)["accepted_tokens"].null_count() == 0 for data in steps)


def drafts(steps: Sequence[pl.DataFrame]) -> bool:
    """Whether a decoding request computed more than one token in a step: speculation."""
    return any(
        data.filter(pl.col("decode_tokens") > pl.col("decode_reqs")).height > 0 for data in steps if "decode_tokens" in data.columns
    )


def matched(
    base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame], value: str = "step_ns", *, per_token: bool
) -> Matched | None:
    """Σ `value` per step, or per accepted token, at equal weights of the strata that every pass has; None without any."""
    sides = [*base, *cand]
    common = set.intersection(*(set(data["stratum"].unique()) for data in sides)) if sides else set()
    if not common:
        return None
    strata = sorted(common)
    counts = [sum(data.filter(pl.col("stratum").is_in(strata)).height for data in side) for side in (base, cand)]
    if not all(counts):
        return None
    weights = _weights(base, cand, strata)
    made = [[_ratio(data, strata, weights, value, per_token=per_token) for data in side] for side in (base, cand)]
    return Matched(base=tuple(made[0]), cand=tuple(made[1]), share=min(_share(data, strata) for data in sides))


def _weights(base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame], strata: list[str]) -> Floats:
    """n·m/(n + m) of a stratum's steps: those that both sides have many of tell the most."""
    sums = []
    for side in (base, cand):
        rows = pl.concat([data.select("stratum") for data in side])["stratum"].value_counts(name="n")
        known = dict(rows.iter_rows())
        sums.append(np.array([known[each] for each in strata], dtype=np.float64))
    weights: Floats = sums[0] * sums[1] / (sums[0] + sums[1])
    return weights


def _share(data: pl.DataFrame, strata: list[str]) -> float:
    whole = data["step_ns"].sum()
    return float(data.filter(pl.col("stratum").is_in(strata))["step_ns"].sum() / whole) if whole else 0.0


def _ratio(data: pl.DataFrame, strata: list[str], weights: Floats, value: str, *, per_token: bool) -> Ratio:
    place = pl.DataFrame({"stratum": strata, "place": range(len(strata))}, schema_overrides={"place": pl.Int64})
    sums = (
        data.join(place, on="stratum")
        .group_by("block", "place")
        .agg(pl.col(value).sum().alias("numerator"), (pl.col("accepted_tokens").sum() if per_token else pl.len()).alias("denominator"), pl.len())
    )  # fmt: skip
    blocks = sorted(sums["block"].unique())
    at = {block: row for row, block in enumerate(blocks)}
    numerator, denominator = (np.zeros((len(blocks), len(strata))) for _ in range(2))
    rows = [at[block] for block in sums["block"]], sums["place"].to_list()
    numerator[rows], denominator[rows] = sums["numerator"].to_numpy(), sums["denominator"].to_numpy()
    # blocks of two passes hold other steps: no pairs
    return Ratio(numerator=numerator, denominator=denominator, weights=weights, n=int(sums["len"].sum()), keys=[object() for _ in blocks])
