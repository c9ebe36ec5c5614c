"""What the client saw and what prompts were made of: latency, throughput, reuse, per pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl

from analyzers.comparison.effect import LEAST_UNITS
from analyzers.comparison.metric import HIGHER, LOWER, NEITHER, Metric
from analyzers.comparison.sample import Floats, Quantile, Ratio, Sample
from analyzers.comparison.sides import Pass, Side

TIME_BLOCKS = 16  # of a pass, for its rate
_TERMS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E"))
# a percentile needs observations on both of its sides: (quantile, least observations per pass)
_QUANTILES = ((0.5, 6), (0.9, 50), (0.99, 500))
_REUSE = {"cached": HIGHER, "fresh": NEITHER, "resent_output": LOWER}


def served(base: Side, cand: Side) -> Iterator[Metric]:
    """Metrics of requests; one that says why where a side has none."""
    sides = (base, cand)
    for side in sides:
        if not any(item.requests["ok"].any() for item in side.passes):
            yield Metric(
                metric_id="latency", group="latency", title="latency", unit="ns", withheld=f"no answered request in {side.name}"
            )
            return
    tokens = [[_tokens(item) for item in side.passes] for side in sides]
    units = _units(sides)
    starts = _starts(sides)
    for term, title in _TERMS:
        yield from _latency(term, title, sides, tokens, units, starts)
    rates = [[_rate(item, rows) for item, rows in zip(side.passes, each, strict=True)] for side, each in zip(sides, tokens, strict=True)]
    if all(rate is not None for side in rates for rate in side):
        yield Metric(
            metric_id="throughput.output_tokens_per_s", group="throughput", title="output tokens per second", unit="tokens/s", better=HIGHER,
            base=[item for item in rates[0] if item], cand=[item for item in rates[1] if item], starts=starts, units="blocks of time",
        )  # fmt: skip
    yield from _reuse(sides, units, starts)


def _starts(sides: Sequence[Side]) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """When passes began; unknown where their clocks have no common zero."""
    base, cand = (
        tuple(item.start_ns if item.part.facts.get("clock") == "epoch" else None for item in side.passes) for side in sides
    )
    return base, cand


def _units(sides: Sequence[Side]) -> tuple[str, ...]:
    """Columns that name what is drawn again: sessions where there are enough, else requests."""
    enough = all(item.requests.filter("ok")["session_id"].n_unique() >= LEAST_UNITS for side in sides for item in side.passes)
    return ("session_id",) if enough else ("session_id", "turn", "place")


def _word(units: Sequence[str]) -> str:
    return "sessions" if len(units) == 1 else "requests"


def _tokens(item: Pass) -> pl.DataFrame:
    """Intervals between tokens of a pass, with the columns of its requests."""
    rows = item.part.store.named("compare_tokens", "analyzers")
    return rows.join(item.requests.filter("ok").select("request_id", "session_id", "turn", "place"), on="request_id")


def _latency(
    term: str, title: str, sides: Sequence[Side], tokens: Sequence[Sequence[pl.DataFrame]], units: tuple[str, ...],
    starts: tuple[tuple[int | None, ...], tuple[int | None, ...]],
) -> Iterator[Metric]:  # fmt: skip
    column = f"{term}_ns"
    frames = [
        [(rows if term == "itl" else item.requests.filter("ok")).drop_nulls(column) for item, rows in zip(side.passes, each, strict=True)]
        for side, each in zip(sides, tokens, strict=True)
    ]  # fmt: skip
    least = min(data.height for side in frames for data in side)
    for q, needed in _QUANTILES:
        name, text = f"latency.{term}_p{round(100 * q)}", f"{title} p{round(100 * q)}"
        if least < needed:
            if q == _QUANTILES[0][0]:
                yield Metric(
                    metric_id=name, group="latency", title=text, unit="ns", withheld=f"{least} observations in a pass, {needed} are needed"
                )
            break
        made = [[_quantile(data, column, q, units) for data in side] for side in frames]
        yield Metric(metric_id=name, group="latency", title=text, unit="ns", base=made[0], cand=made[1], starts=starts, units=_word(units))


def _indexed(data: pl.DataFrame, units: Sequence[str]) -> tuple[list[tuple[object, ...]], pl.DataFrame]:
    """Keys of the units in order, and the rows with `unit`: the place of theirs."""
    keys = data.select(units).unique().sort(units).with_row_index("unit")
    return keys.select(units).rows(), data.join(keys, on=units, nulls_equal=True)


def _quantile(data: pl.DataFrame, column: str, q: float, units: Sequence[str]) -> Quantile:
    keys, rows = _indexed(data, units)
    return Quantile(values=rows[column].cast(pl.Float64).to_numpy(), units=rows["unit"].cast(pl.Int64).to_numpy(), q=q, keys=keys)


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
        events = ok.drop_nulls("output_tokens").select(ts_ns="finished_ns", n="output_tokens").drop_nulls().cast(pl.Int64)
    at = np.clip((events["ts_ns"].to_numpy() - start) * TIME_BLOCKS // (end - start), 0, TIME_BLOCKS - 1)
    counts = np.bincount(at, weights=events["n"].to_numpy(), minlength=TIME_BLOCKS)
    return _single(counts, np.full(TIME_BLOCKS, (end - start) / 1e9 / TIME_BLOCKS), total, list(range(TIME_BLOCKS)))


def _single(numerator: Floats, denominator: Floats, n: int, keys: Sequence[object]) -> Ratio:
    return Ratio(
        numerator=np.asarray(numerator, dtype=np.float64)[:, None], denominator=np.asarray(denominator, dtype=np.float64)[:, None],
        weights=np.ones(1), n=n, keys=keys,
    )  # fmt: skip


def _reuse(
    sides: Sequence[Side], units: tuple[str, ...], starts: tuple[tuple[int | None, ...], tuple[int | None, ...]]
) -> Iterator[Metric]:
    """Parts of the prompts (table reuse), else only the cached share that the API told, as shares of all prompt tokens."""
    parts = [[_parts(item) for item in side.passes] for side in sides]
    if all(data is None for side in parts for data in side):
        return
    if any(data is None for side in parts for data in side):
        yield Metric(metric_id="reuse", group="reuse", title="prompt reuse", unit="share", withheld="not known of every pass")
        return
    known = [[data for data in side if data is not None] for side in parts]
    names = sorted({name for side in known for data in side for name in data["part"].unique()})
    for name in names:
        made = [[_part_share(data, name, units) for data in side] for side in known]
        yield Metric(
            metric_id=f"reuse.{name.replace('lost: ', 'lost.')}", group="reuse", title=f"prompt tokens {name}", unit="share",
            better=_REUSE.get(name, LOWER), base=made[0], cand=made[1], starts=starts, timed=False, units=_word(units), note="of prompt tokens",
        )  # fmt: skip


def _parts(item: Pass) -> pl.DataFrame | None:
    ok = item.requests.filter(pl.col("ok") & (pl.col("prompt_tokens") > 0))
    columns = ("request_id", "session_id", "turn", "place", "prompt_tokens")
    rows = item.part.store.named("compare_reuse", "analyzers").join(ok.select(columns), on="request_id")
    if rows.height and rows["request_id"].n_unique() == ok.height:
        return rows
    told: Callable[[str, pl.Expr], pl.DataFrame] = lambda name, tokens: ok.select(*columns, part=pl.lit(name), tokens=tokens)  # noqa: E731
    if not ok.height or ok["cached_tokens"].null_count():
        return None
    cached = pl.col("cached_tokens")
    return pl.concat([told("cached", cached), told("computed", pl.col("prompt_tokens") - cached)])


def _part_share(data: pl.DataFrame, name: str, units: Sequence[str]) -> Ratio:
    keys, rows = _indexed(data, units)
    tokens = pl.when(pl.col("part") == name).then(pl.col("tokens")).otherwise(0).sum()
    sums = rows.group_by("unit").agg(tokens.alias("part"), pl.col("tokens").sum().alias("whole")).sort("unit")
    return _single(sums["part"].to_numpy(), sums["whole"].to_numpy(), rows["request_id"].n_unique(), keys)
