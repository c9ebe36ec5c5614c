"""What the client saw and what prompts were made of: latency, throughput, reuse, per pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from analyzers.comparison.effect import LEAST_UNITS
from analyzers.comparison.metric import HIGHER, LOWER, NEITHER, Metric
from analyzers.comparison.sample import Floats, Quantile, Ratio, Sample
from analyzers.comparison.sides import Pass, Side
from analyzers.comparison.steadiness import speed_variance

TIME_BLOCKS = 16  # of a pass, for its rate
MOST_UNITS = 500
_TERMS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E"))
# A percentile of few observations jumps from one to the next: (quantile, least observations per pass).
_QUANTILES = ((0.5, 40), (0.9, 100), (0.99, 1000))
_TOGETHER, _MOST_TOGETHER = 0.1, 0.2  # intervals below a tenth of their mean; a larger share of those withholds ITL
_REUSE = {"cached": HIGHER, "fresh": NEITHER, "resent_output": LOWER}


def served(base: Side, cand: Side) -> Iterator[Metric]:
    """Metrics of requests; one that says why where a side has none."""
    sides = (base, cand)
    for side in sides:
        if not any(item.requests["ok"].any() for item in side.passes):
            yield Metric(
                metric_id="latency",
                group="latency",
                title="latency",
                unit="ns",
                withheld=f"no answered request in {side.name}",
            )
            return
    tokens = [[_tokens(item) for item in side.passes] for side in sides]
    units = _units(sides)
    starts = pass_starts(base), pass_starts(cand)
    single = len(base.passes) == len(cand.passes) == 1
    common = sum(speed_variance(item) for side in sides for item in side.passes) if single else 0.0
    for metric in _timed(sides, tokens, units):
        yield replace(metric, starts=starts, common=common, shortest_ns=shortest_ns(sides))
    yield from _reuse(sides, units, starts)


def _timed(sides: Sequence[Side], tokens: Sequence[Sequence[pl.DataFrame]], units: tuple[str, ...]) -> Iterator[Metric]:
    for term, title in _TERMS:
        yield from _latency(term, title, sides, tokens, units)
    rates = [
        [_rate(item, rows) for item, rows in zip(side.passes, each, strict=True)]
        for side, each in zip(sides, tokens, strict=True)
    ]
    if all(rate is not None for side in rates for rate in side):
        yield Metric(
            metric_id="throughput.output_tokens_per_s", group="throughput", title="output tokens per second", unit="tokens/s",
            better=HIGHER, base=[item for item in rates[0] if item], cand=[item for item in rates[1] if item], units="blocks of time",
        )  # fmt: skip


def pass_starts(side: Side) -> tuple[int | None, ...]:
    """When passes began; unknown where their clocks have no common zero."""
    return tuple(item.start_ns if item.part.facts.get("clock") == "epoch" else None for item in side.passes)


def shortest_ns(sides: Sequence[Side]) -> int | None:
    """Length of the shortest pass; None where none is known."""
    known = [
        item.end_ns - item.start_ns
        for side in sides for item in side.passes
        if item.start_ns is not None and item.end_ns is not None and item.end_ns > item.start_ns
    ]  # fmt: skip
    return min(known, default=None)


def _units(sides: Sequence[Side]) -> tuple[str, ...]:
    """Columns that name what is drawn again: sessions where there are enough, else requests."""
    enough = all(
        item.requests.filter("ok")["session_id"].n_unique() >= LEAST_UNITS for side in sides for item in side.passes
    )
    return ("session_id",) if enough else ("session_id", "turn", "place")


def _word(units: Sequence[str]) -> str:
    return "sessions" if len(units) == 1 else "requests"


def _tokens(item: Pass) -> pl.DataFrame:
    """Intervals between tokens of a pass, with the columns of its requests."""
    rows = item.part.read("tokens")
    return rows.join(item.requests.filter("ok").select("request_id", "session_id", "turn", "place"), on="request_id")


def _latency(
    term: str, title: str, sides: Sequence[Side], tokens: Sequence[Sequence[pl.DataFrame]], units: tuple[str, ...],
) -> Iterator[Metric]:  # fmt: skip
    column = f"{term}_ns"
    frames = [
        [(rows if term == "itl" else item.requests.filter("ok")).drop_nulls(column) for item, rows in zip(side.passes, each, strict=True)]
        for side, each in zip(sides, tokens, strict=True)
    ]  # fmt: skip
    least = min(data.height for side in frames for data in side)
    reason = f"{least} observations in a pass" if not least else _together(frames) if term == "itl" else None
    if reason:
        yield Metric(
            metric_id=f"latency.{term}_mean", group="latency", title=f"{title} mean", unit="ns", withheld=reason
        )
        return
    kinds = [("mean", None), *((f"p{round(100 * q)}", q) for q, needed in _QUANTILES if least >= needed)]
    for name, q in kinds:
        made = [
            [_mean(data, column, units) if q is None else _quantile(data, column, q, units) for data in side]
            for side in frames
        ]
        yield Metric(
            metric_id=f"latency.{term}_{name}", group="latency", title=f"{title} {name}", unit="ns", base=made[0], cand=made[1],
            units=_word(units),
        )  # fmt: skip


def _together(frames: Sequence[Sequence[pl.DataFrame]]) -> str | None:
    """Why the intervals are not the engine's: it sends several tokens at once, or the client reads them together."""
    most = max(
        float((data["itl_ns"] < _TOGETHER * float(str(data["itl_ns"].mean()))).cast(pl.Float64).sum()) / data.height
        for side in frames for data in side
    )  # fmt: skip
    return (
        f"{100 * most:.0f} % of the tokens came together with the one before; TPOT tells their rate"
        if most > _MOST_TOGETHER
        else None
    )


def _indexed(data: pl.DataFrame, units: Sequence[str]) -> tuple[list[tuple[object, ...]], pl.DataFrame]:
    """Keys of the units in order, and the rows with `unit`: the place of theirs. Beyond MOST_UNITS, neighbours are one."""
    keys = data.select(units).unique().sort(units).with_row_index("unit")
    if keys.height > MOST_UNITS:
        keys = keys.with_columns(unit=pl.col("unit").cast(pl.Int64) * MOST_UNITS // keys.height)
    return keys.unique("unit", keep="first", maintain_order=True).select(units).rows(), data.join(
        keys, on=units, nulls_equal=True
    )


def _mean(data: pl.DataFrame, column: str, units: Sequence[str]) -> Ratio:
    keys, rows = _indexed(data, units)
    sums = rows.group_by("unit").agg(pl.col(column).cast(pl.Float64).sum().alias("sum"), pl.len()).sort("unit")
    return _single(sums["sum"].to_numpy(), sums["len"].to_numpy(), data.height, keys)


def _quantile(data: pl.DataFrame, column: str, q: float, units: Sequence[str]) -> Quantile:
    keys, rows = _indexed(data, units)
    return Quantile(
        values=rows[column].cast(pl.Float64).to_numpy(), units=rows["unit"].cast(pl.Int64).to_numpy(), q=q, keys=keys
    )


def _rate(item: Pass, tokens: pl.DataFrame) -> Sample | None:
    """Output tokens per second over the pass, by blocks of its time; without token times they count at the request's end."""
    start, end = item.start_ns, item.end_ns
    ok = item.requests.filter("ok")
    if start is None or end is None or end <= start or not (ok["output_tokens"].sum() or 0):
        return None
    first = ok.drop_nulls("ttft_ns").select(ts_ns=pl.col("arrival_ns") + pl.col("ttft_ns"), n=pl.lit(1))
    events = pl.concat([first.cast(pl.Int64), tokens.select("ts_ns", n=pl.lit(1)).cast(pl.Int64)])
    total = int(ok["output_tokens"].sum())
    if events.height != total:  # not every token was timed
        events = (
            ok.drop_nulls("output_tokens").select(ts_ns="finished_ns", n="output_tokens").drop_nulls().cast(pl.Int64)
        )
    at = np.clip((events["ts_ns"].to_numpy() - start) * TIME_BLOCKS // (end - start), 0, TIME_BLOCKS - 1)
    counts = np.bincount(at, weights=events["n"].to_numpy(), minlength=TIME_BLOCKS).astype(np.float64)
    return _single(counts, np.full(TIME_BLOCKS, (end - start) / 1e9 / TIME_BLOCKS), total, list(range(TIME_BLOCKS)))


def _single(numerator: Floats, denominator: Floats, n: int, keys: Sequence[object]) -> Ratio:
    return Ratio(
        numerator=np.asarray(numerator, dtype=np.float64), denominator=np.asarray(denominator, dtype=np.float64),
        n=n, keys=keys,
    )  # fmt: skip


def _reuse(
    sides: Sequence[Side], units: tuple[str, ...], starts: tuple[tuple[int | None, ...], tuple[int | None, ...]]
) -> Iterator[Metric]:
    """Parts of the prompts (table reuse), else only the cached share that the API told, as shares of all prompt tokens."""
    for read in (_pieces, _counted):  # the same division on both sides
        parts = [[read(item) for item in side.passes] for side in sides]
        if all(data is not None for side in parts for data in side):
            break
    else:
        yield Metric(
            metric_id="reuse",
            group="reuse",
            title="prompt reuse",
            unit="share",
            withheld="cached tokens are not known of every request",
        )
        return
    known = [[data for data in side if data is not None] for side in parts]
    names = sorted({name for side in known for data in side for name in data["part"].unique()})
    for name in names:
        made = [[_part_share(data, name, units) for data in side] for side in known]
        yield Metric(
            metric_id=f"reuse.{name.replace('lost: ', 'lost.')}", group="reuse", title=f"prompt tokens {name}", unit="share",
            better=_REUSE.get(name, LOWER), base=made[0], cand=made[1], starts=starts, timed=False, units=_word(units),
            note="of prompt tokens",
        )  # fmt: skip


def _asked(item: Pass) -> pl.DataFrame:
    return item.requests.filter(pl.col("ok") & (pl.col("prompt_tokens") > 0)).select(
        "request_id", "session_id", "turn", "place", "prompt_tokens", "cached_tokens"
    )


def _pieces(item: Pass) -> pl.DataFrame | None:
    """Parts by table reuse; None where it lacks a request."""
    asked = _asked(item)
    rows = item.part.read("reuse").join(asked, on="request_id")
    return rows if rows.height and rows["request_id"].n_unique() == asked.height else None


def _counted(item: Pass) -> pl.DataFrame | None:
    """Cached and computed tokens as the API counted them; None where it did not."""
    asked = _asked(item)
    if not asked.height or asked["cached_tokens"].null_count():
        return None
    cached = pl.col("cached_tokens")
    return pl.concat([
        asked.with_columns(part=pl.lit("cached"), tokens=cached),
        asked.with_columns(part=pl.lit("computed"), tokens=pl.col("prompt_tokens") - cached),
    ])  # fmt: skip


def _part_share(data: pl.DataFrame, name: str, units: Sequence[str]) -> Ratio:
    keys, rows = _indexed(data, units)
    tokens = pl.when(pl.col("part") == name).then(pl.col("tokens")).otherwise(0).sum()
    sums = rows.group_by("unit").agg(tokens.alias("part"), pl.col("tokens").sum().alias("whole")).sort("unit")
    return _single(sums["part"].to_numpy(), sums["whole"].to_numpy(), rows["request_id"].n_unique(), keys)
