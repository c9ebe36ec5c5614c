"""States of a device second by second (method §8): deep idle, execution-idle, active, unknown.

A sample speaks for the time from it to the next one. Seconds are counted from the first sample of a stretch without a gap;
a second's activity is the mean of the samples whose time lies in it, by its middle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzers.energy_curve import LONGEST_TIME_NS, Flags, Floats, Ints, gap_limit_ns

ACTIVITY_THRESHOLD = 0.05  # share of the second; at or above it is active
LINK_THRESHOLD_BYTES_S = 1e9
PAPER_DURATIONS_S = (0.0, 5.0)  # none: the serving table; five seconds: the cluster figures
SECOND_NS = 1_000_000_000

ACTIVITY = ("sm_active", "tensor_active", "dram_active", "fp16_active", "fp32_active", "fp64_active")
STAND_IN = "sm_util"  # share of time with any kernel: overstates activity, so it finds less execution-idle
# of a link, both directions apart where they are known, else their sum
LINKS = (
    ("pcie_tx_bytes_s", "pcie_rx_bytes_s", "pcie_bytes_s"),
    ("nvlink_tx_bytes_s", "nvlink_rx_bytes_s", "nvlink_bytes_s"),
)
LINK_COLUMNS = tuple(name for link in LINKS for name in link)
_SLOWER = 3  # so many times the period of all samples, and a signal comes from a source of its own
SIGNALS = (*ACTIVITY, STAND_IN, *LINK_COLUMNS)

STATES = ("active", "execution_idle", "deep_idle", "unknown")
_ACTIVE, _EXECUTION_IDLE, _DEEP_IDLE, _UNKNOWN = range(4)
_SCHEMA = {"start_ns": pl.Int64, "end_ns": pl.Int64, "state": pl.String, "why": pl.String, "activity": pl.Float64}


def cleaned(samples: pl.DataFrame) -> pl.DataFrame:
    """Rows of one device in time order, one per time; readings that none can be (negative, not finite) as NULL."""
    possible = (
        pl.when(pl.col(name).is_finite() & (pl.col(name) >= 0)).then(pl.col(name)).alias(name) for name in SIGNALS
    )
    inside = samples.filter(pl.col("ts_ns").is_between(-LONGEST_TIME_NS, LONGEST_TIME_NS, closed="none"))
    return _held(inside.with_columns(possible).sort("ts_ns").unique("ts_ns", keep="first", maintain_order=True))


def _held(samples: pl.DataFrame) -> pl.DataFrame:
    """A signal of a slower source is held until its next sample, over the rows of the faster ones.

    One that is missing now and then is not: the rule leaves it out there.
    """
    ts = samples["ts_ns"].to_numpy()
    if len(ts) < 2:
        return samples
    period = float(np.median(np.diff(ts)))
    held = []
    for name in (*SIGNALS, "resident"):
        own = samples.filter(pl.col(name).is_not_null())["ts_ns"].to_numpy()
        if len(own) < 2 or float(np.median(np.diff(own))) < _SLOWER * period:
            continue
        at = pl.when(pl.col(name).is_not_null()).then("ts_ns")
        apart = at.backward_fill() - at.forward_fill()
        held.append(pl.when(apart <= gap_limit_ns(own)).then(pl.col(name).forward_fill()).alias(name))
    return samples.with_columns(held)


def signals_of(samples: pl.DataFrame) -> tuple[str, ...]:
    """Signals that the rule uses for this device: those with any reading; the stand-in only where no activity has one."""
    known = [name for name in SIGNALS if samples[name].null_count() < samples.height]
    if any(name in ACTIVITY for name in known):
        known = [name for name in known if name != STAND_IN]
    return tuple(known)


def seconds(
    samples: pl.DataFrame,
    limit_ns: int,
    *,
    resident_spans: Sequence[tuple[int, int]] = (),
    assume_resident: bool = False,
) -> pl.DataFrame:
    """One row per second of one device: start_ns, end_ns, state, why, activity (largest signal, 0..1; NULL: not known).

    `samples` as `cleaned` leaves them, with `resident`. Where that is NULL, a second inside one of `resident_spans` (a
    program is known to hold the device) is resident, and all are with `assume_resident`. `why` an 'unknown' second is:
    'no_signal' (no activity signal) | 'residence'. The last second before a gap may be shorter.
    """
    grid = _grid(samples["ts_ns"].to_numpy(), limit_ns)
    if grid is None:
        return pl.DataFrame(schema=_SCHEMA)
    start, end, group, row = grid
    names = signals_of(samples)
    mean = _per_second(samples, names, group, row)
    activity = [name for name in names if name in ACTIVITY or name == STAND_IN]
    largest = _largest([mean[name] for name in activity], len(start))
    busy = largest >= ACTIVITY_THRESHOLD
    for values in _links(mean, len(start)):
        busy |= values >= LINK_THRESHOLD_BYTES_S
    resident = mean["resident"]  # 1, 0, NaN
    held = assume_resident | _inside(start, end, resident_spans)
    resident = np.where(np.isnan(resident) & held, 1.0, resident)
    silent = np.isnan(largest)
    state = np.select(
        [busy, resident == 0, silent, resident == 1], [_ACTIVE, _DEEP_IDLE, _UNKNOWN, _EXECUTION_IDLE], _UNKNOWN
    )
    why = np.where(state == _UNKNOWN, np.where(silent, "no_signal", "residence"), "")
    return pl.DataFrame(
        {
            "start_ns": start, "end_ns": end, "state": np.array(STATES)[state], "why": why,
            "activity": pl.Series(largest, nan_to_null=True),
        },
        schema=_SCHEMA,
    ).with_columns(pl.col("why").replace("", None))  # fmt: skip


def intervals(rows: pl.DataFrame, min_duration_s: float) -> pl.DataFrame:
    """start_ns, end_ns of uninterrupted execution-idle of at least `min_duration_s`; `rows` as from `seconds`."""
    idle = rows.filter(pl.col("state") == "execution_idle").sort("start_ns")
    run = (pl.col("start_ns") != pl.col("end_ns").shift(1)).fill_null(value=True).cum_sum()
    found = idle.group_by(run.alias("run"), maintain_order=True).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return found.filter(pl.col("end_ns") - pl.col("start_ns") >= min_duration_s * SECOND_NS).drop("run")


def _grid(ts: Ints, limit_ns: int) -> tuple[Ints, Ints, Ints, Ints] | None:
    """Seconds of every stretch without a gap: starts, ends, the second each sample lies in (-1: none), and the sample
    that speaks for the middle of each second."""
    if len(ts) < 2:
        return None
    good = np.diff(ts) <= limit_ns
    begins = np.concatenate([[True], ~good])
    at = np.flatnonzero(begins)
    first, last = ts[at], ts[np.concatenate([at[1:] - 1, [len(ts) - 1]])]
    count = -((first - last) // SECOND_NS)  # rounded up; 0 for a sample between two gaps
    if not count.sum():
        return None
    offset = np.concatenate([[0], np.cumsum(count)[:-1]])
    number = np.arange(int(count.sum())) - np.repeat(offset, count)
    start = np.repeat(first, count) + number * SECOND_NS
    end = np.minimum(start + SECOND_NS, np.repeat(last, count))
    stretch = np.cumsum(begins) - 1
    after = np.concatenate([ts[1:], ts[-1:]])
    # by the middle of the time a sample speaks for (doubled to stay whole), jitter around a full second does no harm
    middle = ((ts - first[stretch]) + (after - first[stretch])) // (2 * SECOND_NS)
    group = np.where(np.concatenate([begins[1:], [True]]), -1, offset[stretch] + middle)
    row = np.searchsorted(ts, start + (end - start) // 2, side="right") - 1
    return start, end, group, row


def _per_second(samples: pl.DataFrame, names: Sequence[str], group: Ints, row: Ints) -> dict[str, Floats]:
    """Means per second as arrays, NaN where not known; `resident`: 1 where any sample says so."""
    columns = samples.select(*names, pl.col("resident").cast(pl.Float64))
    grouped = (
        columns.with_columns(second=pl.Series(group))
        .filter(pl.col("second") >= 0)
        .group_by("second")
        .agg(*(_mean(name) for name in names), pl.col("resident").max())
    )
    every = pl.DataFrame({"second": np.arange(len(row))}).join(grouped, on="second", how="left", maintain_order="left")
    empty = np.isin(np.arange(len(row)), group, invert=True)
    result = {}
    for name in (*names, "resident"):
        own = every[name].fill_null(float("nan")).to_numpy()
        spoken_for = columns[name].fill_null(float("nan")).to_numpy()[row]
        result[name] = np.where(empty, spoken_for, own)
    return result


def _mean(name: str) -> pl.Expr:
    """Ten readings of 0.05 are 5 %, whatever their sum comes to in binary."""
    mean = pl.col(name).mean()
    return mean if name in LINK_COLUMNS else mean.round(12)


def _largest(values: Sequence[Floats], size: int) -> Floats:
    """The largest of several signals, missing ones left out; NaN where all are missing."""
    result = np.full(size, np.nan)
    for each in values:
        result = np.fmax(result, each)
    return result


def _links(mean: dict[str, Floats], size: int) -> list[Floats]:
    """Rates of every link direction that is known; a sum of directions only where one of them is not."""
    missing = np.full(size, np.nan)
    rates = []
    for tx_name, rx_name, both_name in LINKS:
        tx, rx, both = (mean.get(name, missing) for name in (tx_name, rx_name, both_name))
        rates += [tx, rx, np.where(np.isnan(tx) | np.isnan(rx), both, np.nan)]
    return rates


def _inside(start: Ints, end: Ints, spans: Sequence[tuple[int, int]]) -> Flags:
    """Whether a second lies wholly inside one of the spans."""
    found = np.zeros(len(start), dtype=np.bool_)
    for first, last in spans:
        found |= (start >= first) & (end <= last)
    return found
