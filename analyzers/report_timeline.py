"""Steps of a run over time: exact where they are few, in bins of equal time where they are many; the steps' roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traces.store import TraceStore

KINDS = ("prefill", "decode", "mixed", "other")
STACKED = ("prefill_ns", "decode_ns", "other_ns", "busy_ns", "idle_ns", "unrecorded_ns")
LINES = ("prefill_reqs", "decode_reqs", "waiting", "kv_usage", "kv_tokens")
EXACT = 500  # steps drawn one by one; more are drawn in bins
BINS = 250
MOST_DETAIL = 200_000  # steps kept for zooming: about 5 MB of a page
_POINTS = 600  # of the steps' roofline
_CELLS = 24  # of its grid, per factor of ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Steps of one rank. `rows`: sql/report_timeline.sql, those with a place in time. `ranks`: of the run.

    busy_ns of a row is set only where it was not split into phases, so that the parts of STACKED sum to the device span.
    """

    rank: int
    ranks: int
    rows: pl.DataFrame
    unplaced: int

    @property
    def exact(self) -> bool:
        """Whether every step is drawn."""
        return self.rows.height <= EXACT


def read_timeline(store: TraceStore, reasons: Mapping[str, str]) -> Timeline | None:
    """The steps of the run's first rank; None where there are none or health withholds their times."""
    ranks = store.query("SELECT DISTINCT rank FROM steps WHERE run_id = ? ORDER BY rank", [store.run_id])["rank"]
    if not ranks.len() or "steps" in reasons:
        return None
    rows = store.named("report_timeline", "analyzers", rank=int(ranks[0]))
    gone = [name for name in rows.columns if f"steps.{name}" in reasons]
    rows = rows.with_columns(pl.lit(None, dtype=rows.schema[name]).alias(name) for name in gone)
    split = pl.sum_horizontal(pl.col("prefill_ns", "decode_ns", "other_ns").is_not_null().cast(pl.Int8)) > 0
    rows = rows.with_columns(busy_ns=pl.when(~split).then("busy_ns"))
    placed = rows.filter(pl.col("start_ns").is_not_null() & pl.col("dur_ns").is_not_null())
    return Timeline(rank=int(ranks[0]), ranks=ranks.len(), rows=placed, unplaced=rows.height - placed.height)


def binned(rows: pl.DataFrame, bins: int = BINS) -> pl.DataFrame:
    """One row per bin of equal time (by start) that has a step, with the columns of the page's script.

    middle_ns and width_ns of the bin; seq_first, seq_last and n; per kind `<kind>_n`, `<kind>_p50_ns`, `_min_ns`, `_max_ns` of
    dur_ns; interference_ns: the largest; means of STACKED (unknown counts as none) and of LINES (over those that are known).
    """
    low = int(rows["start_ns"].min() or 0)  # type: ignore[arg-type]  # polars types min() as any literal
    high = int((rows["start_ns"] + rows["dur_ns"]).max() or 0)  # type: ignore[arg-type]
    width = max((high - low) / bins, 1.0)
    number = ((pl.col("start_ns") - low) / width).floor().clip(0, bins - 1).cast(pl.Int32)
    aggregates: list[pl.Expr] = [
        pl.len().alias("n"), pl.col("seq").min().alias("seq_first"), pl.col("seq").max().alias("seq_last"),
        pl.col("interference_ns").max(), *(pl.col(name).fill_null(0).mean() for name in STACKED),
        *(pl.col(name).mean() for name in LINES),
    ]  # fmt: skip
    for kind in KINDS:
        own = pl.col("dur_ns").filter(pl.col("kind") == kind)
        aggregates += [
            own.len().alias(f"{kind}_n"), own.median().alias(f"{kind}_p50_ns"), own.min().alias(f"{kind}_min_ns"),
            own.max().alias(f"{kind}_max_ns"),
        ]  # fmt: skip
    return (
        rows.group_by(number.alias("bin"))
        .agg(aggregates)
        .sort("bin")
        .with_columns(middle_ns=low + (pl.col("bin") + 0.5) * width, width_ns=pl.lit(width))
    )


def roofline_points(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Steps with a known cost as points: intensity, flops_per_s, kind, n, seq (of the first). Steps of a kind that fall
    into one cell of a logarithmic grid become one point at their geometric mean, where there are many."""
    known = rows.filter((pl.col("intensity") > 0) & (pl.col("flops_per_s") > 0))
    if known.height <= _POINTS:
        return known.select("intensity", "flops_per_s", "kind", pl.lit(1).alias("n"), "seq").to_dicts()
    cells = [(pl.col(name).log10() * _CELLS).floor().alias(f"{name}_cell") for name in ("intensity", "flops_per_s")]
    return (
        known.group_by("kind", *cells)
        .agg(
            pl.col("intensity").log().mean().exp(), pl.col("flops_per_s").log().mean().exp(), pl.len().alias("n"),
            pl.col("seq").min(),
        )
        .sort("n", "seq", descending=[True, False])
        .head(_POINTS)
        .select("intensity", "flops_per_s", "kind", "n", "seq")
        .to_dicts()
    )  # fmt: skip
