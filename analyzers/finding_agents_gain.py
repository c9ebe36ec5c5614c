"""What an engine would save if lost tokens were found in its cache: predicted from its own ledger (method §10).

Tokens that are not computed take their price with them, the pairs of attention they stand in theirs, and a step in which
nothing else was done its base (analyzers/step_law.py). Three things keep that from being one number; the interval covers
them: how sure the prices are (fits on redrawn steps, 95 %); up to a block less one token of each request that stays lost
because its last block is not full; and requests that are served sooner overlap less, so that steps which they had shared
become more.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzers.finding import Gain, Interval
from analyzers.step_law import WORK, Floats, StepLaw

_QUANTILES = (0.025, 0.975)
_LEFT_OUT = 0.05  # of the gain, either way: what the law and the counting of steps leave out (docs/findings.md)


def step_total_ns(steps: pl.DataFrame) -> int:
    """The engine's step time of a pass; `steps` as in sql/finding_steps.sql."""
    return int(steps["step_ns"].sum())


def predicted(law: StepLaw, steps: pl.DataFrame, lost: pl.DataFrame, block_tokens: int) -> Gain | None:
    """The share of the step time of `steps` that goes away if `lost` (rows of sql/finding_agents_steps.sql) had been cached.

    `block_tokens`: of the cache; 1 where only whole blocks were lost. None where no step computed any of it.
    """
    chunks = lost.join(steps.select("pid", "seq", "decode_tokens"), on=["pid", "seq"], how="inner")
    if not chunks.height or step_total_ns(steps) <= 0:
        return None
    requests = _by_request(chunks, block_tokens)
    whole = np.array([float(steps.height), *(float(steps[name].sum()) for name in WORK)])
    most = _amounts(requests, kept=0.0, steps="shared")
    value, _ = law.share(_amounts(requests, kept=0.5), whole)
    least, by_draw = law.share(_amounts(requests, kept=1.0), whole)
    apart, chance = _apart(law, steps, by_draw, whole)
    low = float(np.quantile(by_draw - apart - chance, _QUANTILES[0]))
    high = float(np.quantile(law.share(most, whole)[1] + chance, _QUANTILES[1]))
    if value <= 0:
        return None
    ends = min(low, least, value), max(high, law.share(most, whole)[0], value)
    return Gain(
        value=value, interval=Interval(low=ends[0] - _LEFT_OUT * value, high=min(1.0, ends[1] + _LEFT_OUT * value))
    )


def _by_request(chunks: pl.DataFrame, block_tokens: int) -> pl.DataFrame:
    """Per request: lost tokens and pairs, what of them an unfilled block may keep, and its share of steps with its chunks."""
    kept = pl.min_horizontal("tokens", pl.lit(float(block_tokens - 1)))
    return (
        chunks.with_columns(alone=(pl.col("decode_tokens") == 0) / pl.col("beside"), shared=1 / pl.col("beside"))
        .group_by("request_id")
        .agg(
            pl.col("tokens", "pairs").sum(), pl.col("until").max(), pl.col("alone", "shared").mean(),
            pl.col("chunks", "computed_tokens", "budget_tokens").first(),
        )
        .with_columns(kept_tokens=kept)
        .with_columns(kept_pairs=pl.min_horizontal("pairs", kept * (2 * pl.col("until") - kept + 1) / 2))
        .sort("request_id")
    )  # fmt: skip


def _amounts(requests: pl.DataFrame, *, kept: float, steps: str = "alone") -> Floats:
    """What goes away: steps, prefill tokens and pairs, where `kept` (0..1) of an unfilled block stays lost.

    `steps`: of the chunks that need not be computed, count those 'alone' in their step, or those with decodes as well
    ('shared': these find room in other steps).
    """
    tokens = pl.col("tokens") - kept * pl.col("kept_tokens")
    still = ((pl.col("computed_tokens") - tokens) / pl.col("budget_tokens")).ceil().clip(lower_bound=1)
    row = requests.select(
        steps=((pl.col("chunks") - still).clip(lower_bound=0) * pl.col(steps)).sum(), tokens=tokens.sum(),
        pairs=(pl.col("pairs") - kept * pl.col("kept_pairs")).sum(),
    ).row(0)  # fmt: skip
    return np.array([*row, 0.0, 0.0])


def _apart(law: StepLaw, steps: pl.DataFrame, gain: Floats, whole: Floats) -> tuple[Floats, Floats]:
    """The share that steps add which requests had shared, and how far chance may move it.

    Overlap beyond one request falls with the time requests take. How often requests meet is a count with chance in it: half of
    its square root, either way, held for random loops of a known law (docs/findings.md).
    """
    served, left = float(steps["requests"].sum()), 1 - np.clip(gain, 0, 1)
    more = served / (1 + (served / steps.height - 1) * left) - steps.height
    _, one = law.share(np.array([1.0, 0.0, 0.0, 0.0, 0.0]), whole)
    return np.maximum(more, 0) * one, np.sqrt(max(served - steps.height, 0) * left) / 2 * one
