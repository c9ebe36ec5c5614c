"""Steps of like size: what makes a step of one run comparable with one of another (same kind, similar batch and tokens).

A stratum is a step kind with classes of decoding requests, prefill tokens and context. Counts up to 8 are a class of their own,
above that a class is 25 % wide (tokens 60 %, the context of a decoding request a factor of 2, of prefill 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzers.comparison.sample import Ratio, nameless

BLOCKS = 20  # of consecutive steps of a kind, drawn as a whole
KINDS = ("prefill", "decode", "mixed", "other")
_EXACT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One number of the steps of one kind: a Ratio per pass, and the smallest share of a pass's time in strata both sides have."""

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
                pl.col("kind"), _class(reqs, 1.25), _class(pl.col("prefill_tokens"), 1.6),
                _class(pl.col("prefill_context_tokens"), 4.0), _class(per_req, 2.0),
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
        data.filter(pl.col("decode_tokens") > pl.col("decode_reqs")).height > 0
        for data in steps
        if "decode_tokens" in data.columns
    )


def matched(
    base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame], value: str = "step_ns", *, per_token: bool
) -> Matched | None:
    """`value` per step, or per accepted token, against what steps of their strata take on both sides; None without a common one.

    Indirect standardization: a pass's number is Σ observed / Σ expected, expected being the mean of both sides' stratum means,
    so that passes of another mix compare. It is told in the unit of the mean expected value.
    """
    sides = (base, cand)
    if not base or not cand:
        return None
    each = [_by_stratum(pl.concat([_plain(data, value, per_token=per_token) for data in side])) for side in sides]
    both = each[0].join(each[1], on="stratum", suffix="_cand").filter(pl.min_horizontal("size", "size_cand") > 0)
    if not both.height:
        return None
    weight = pl.col("size") * pl.col("size_cand") / (pl.col("size") + pl.col("size_cand"))
    expected = both.select("stratum", expected=(pl.col("mean") + pl.col("mean_cand")) / 2, weight=weight)
    usual = float(np.average(expected["expected"].to_numpy(), weights=expected["weight"].to_numpy()))
    if not usual > 0:
        return None
    made = [
        [_ratio(_plain(data, value, per_token=per_token).join(expected, on="stratum"), usual) for data in side]
        for side in sides
    ]
    if any(item is None for side in made for item in side):
        return None
    share = min(_share(data, expected["stratum"]) for side in sides for data in side)
    kept = [tuple(item for item in side if item is not None) for side in made]
    return Matched(base=kept[0], cand=kept[1], share=share)


def _plain(data: pl.DataFrame, value: str, *, per_token: bool) -> pl.DataFrame:
    size = pl.col("accepted_tokens") if per_token else pl.lit(1)
    return data.select("stratum", "block", value=pl.col(value).cast(pl.Float64), size=size.cast(pl.Float64))


def _by_stratum(rows: pl.DataFrame) -> pl.DataFrame:
    sums = rows.group_by("stratum").agg(pl.col("value", "size").sum()).sort("stratum")
    return sums.select("stratum", "size", mean=pl.col("value") / pl.col("size"))


def _share(data: pl.DataFrame, strata: pl.Series) -> float:
    whole = int(data["step_ns"].sum())
    return int(data.filter(pl.col("stratum").is_in(strata.to_list()))["step_ns"].sum()) / whole if whole else 0.0


def _ratio(rows: pl.DataFrame, usual: float) -> Ratio | None:
    sums = (
        rows.group_by("block")
        .agg(pl.col("value").sum(), expected=(pl.col("size") * pl.col("expected")).sum(), n=pl.len())
        .sort("block")
    )  # fmt: skip
    if not sums.height or not (sums["expected"].sum() or 0) > 0:
        return None
    # blocks of two passes hold other steps: no pairs
    return Ratio(
        numerator=sums["value"].to_numpy(), denominator=sums["expected"].to_numpy() / usual,
        n=int(sums["n"].sum()), keys=nameless(sums.height),
    )  # fmt: skip
