"""What limits an activity: the thresholds of method §6, in one place, and the verdicts they give."""

from __future__ import annotations

import polars as pl

GOOD_ROOF_FRACTION = 0.5  # from here on an activity is limited by its side of the roof
IMPOSSIBLE_ROOF_FRACTION = 1.05  # faster than the device can: an error in peak, shape or window
LATENCY_FACTOR = 3.0  # within this many times an empty kernel, what takes the time is the launch
EMPTY_KERNEL_NS = 5_000.0  # of an empty kernel, where the device was not calibrated
# Names of copies that wait for the link to the host, not for the device's memory.
HOST_COPY = r"(?i)HtoD|DtoH|Host -> Device|Device -> Host|Pinned|Pageable"
COLLECTIVE = "comm"  # category of what waits for the link to other devices
BOUNDS = ("compute", "memory", "latency", "inefficient", "comm")


def thresholds(empty_kernel_ns: float | None = None) -> dict[str, float]:
    """All of them by name, as reports print them; `empty_kernel_ns` is the calibrated one."""
    return {
        "good_roof_fraction": GOOD_ROOF_FRACTION,
        "impossible_roof_fraction": IMPOSSIBLE_ROOF_FRACTION,
        "latency_factor": LATENCY_FACTOR,
        "empty_kernel_ns": EMPTY_KERNEL_NS if empty_kernel_ns is None else empty_kernel_ns,
    }


def classified(
    rows: pl.DataFrame, empty_kernel_ns: float | None = None, smallest_bytes: float | None = None
) -> pl.DataFrame:
    """Adds intensity (FLOP/byte), roof_fraction, impossible, side and bound.

    Needs flops, bytes, least_bytes (NULL where bytes are certain), soft, category, dur_ns, peak_flops (FLOP/s),
    peak_bandwidth (bytes/s) and cache_bandwidth (of data of this size, caches included; NULL where not measured). What is
    too fast for the memory but not for the caches came from these, and is measured against them. A soft cost that would
    need more than the device can was no cost of this row: it is set to NULL. What moves less than the smallest data that was
    measured (`smallest_bytes`) in less time than an empty kernel takes (`empty_kernel_ns`, calibrated) has no roof: it came from
    caches nearer than any that were measured, and its bound is `latency`.
    """
    rows = rows.with_columns(refuted=_refuted())
    rows = rows.with_columns(bytes=pl.when("refuted").then(_most_bytes()).otherwise("bytes"))
    rows = rows.with_columns(roof_fraction=_fraction(pl.col("peak_bandwidth")))
    cached = (pl.col("roof_fraction") > IMPOSSIBLE_ROOF_FRACTION) & (
        pl.col("cache_bandwidth") > pl.col("peak_bandwidth")
    )
    rows = rows.with_columns(
        roof_fraction=pl.when(cached).then(_fraction(pl.col("cache_bandwidth"))).otherwise("roof_fraction")
    )
    wrong = pl.col("soft").fill_null(value=False) & (pl.col("roof_fraction") > IMPOSSIBLE_ROOF_FRACTION)
    rows = rows.with_columns(
        pl.when(~wrong.fill_null(value=False)).then(pl.col(name)).alias(name)
        for name in ("flops", "bytes", "cost_source", "roof_fraction")
    )
    rows = rows.with_columns(unmeasured=_unmeasured(empty_kernel_ns, smallest_bytes))
    rows = rows.with_columns(roof_fraction=pl.when(~pl.col("unmeasured")).then("roof_fraction"))
    ridge = pl.col("peak_flops") / pl.col("peak_bandwidth")
    intensity = pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes"))
    impossible = pl.col("roof_fraction") > IMPOSSIBLE_ROOF_FRACTION
    rows = rows.with_columns(intensity=intensity, impossible=impossible)
    judged = (pl.col("roof_fraction").is_not_null() & ~pl.col("impossible")) | pl.col("unmeasured")
    side = pl.when(judged & pl.col("intensity").is_not_null()).then(
        pl.when(pl.col("intensity") >= ridge).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    )
    short = pl.col("dur_ns") <= LATENCY_FACTOR * (EMPTY_KERNEL_NS if empty_kernel_ns is None else empty_kernel_ns)
    low = pl.when(short).then(pl.lit("latency")).otherwise(pl.lit("inefficient"))
    rows = rows.with_columns(side=side)
    rows = _without_limits(rows, ridge)
    judged = judged & ~pl.col("refuted")
    good = (pl.col("roof_fraction") >= GOOD_ROOF_FRACTION).fill_null(value=False)
    bound = (
        pl.when(pl.col("impossible").fill_null(value=False)).then(None)
        .when(pl.col("category") == COLLECTIVE).then(pl.lit("comm"))
        .when(judged).then(pl.when(good).then(pl.col("side")).otherwise(low))
    )  # fmt: skip
    return rows.with_columns(bound=bound).drop("refuted", "unmeasured")


def _unmeasured(empty_kernel_ns: float | None, smallest_bytes: float | None) -> pl.Expr:
    """Rows that only seem too fast: smaller and shorter than anything that the roof was measured with."""
    if empty_kernel_ns is None or smallest_bytes is None:
        return pl.lit(False)
    computable = 1e9 * pl.col("flops") / pl.col("peak_flops") <= IMPOSSIBLE_ROOF_FRACTION * pl.col("dur_ns")
    small = (pl.col("bytes") < smallest_bytes) & (pl.col("dur_ns") < empty_kernel_ns)
    return ((pl.col("roof_fraction") > IMPOSSIBLE_ROOF_FRACTION) & small & computable).fill_null(value=False)


def path_bandwidth() -> pl.Expr:
    """Bytes/s of what a row's bytes pass: the link to the host for copies, the one to other devices for collectives, else the
    device's memory. Needs category, name, peak_bandwidth, host_link and device_link (NULL: not known).
    """
    to_host = (pl.col("category") == "memcpy") & pl.col("name").str.contains(HOST_COPY).fill_null(value=False)
    return (
        pl.when(to_host).then("host_link").when(pl.col("category") == COLLECTIVE).then("device_link")
        .otherwise("peak_bandwidth")
    )  # fmt: skip


def _fraction(bandwidth: pl.Expr) -> pl.Expr:
    """Roof time over measured time; NULL where cost, peaks or time are not known."""
    roof_ns = 1e9 * pl.max_horizontal(pl.col("flops") / pl.col("peak_flops"), pl.col("bytes") / bandwidth)
    known = pl.col("peak_flops").is_not_null() & bandwidth.is_not_null() & pl.col("flops").is_not_null()
    return pl.when(known & (pl.col("dur_ns") > 0)).then(roof_ns / pl.col("dur_ns"))


def _most_bytes() -> pl.Expr:
    """What the device could have moved at most in the time a row took."""
    return pl.col("peak_bandwidth") * pl.col("dur_ns") / 1e9


def _refuted() -> pl.Expr:
    """Rows whose expected expert bytes the device could not have read, while it could those of tokens that route alike:
    routing was not uniform, and how many experts were read is between the two."""
    refuted = (pl.col("bytes") > IMPOSSIBLE_ROOF_FRACTION * _most_bytes()) & (pl.col("least_bytes") <= _most_bytes())
    return refuted.fill_null(value=False)


def _without_limits(rows: pl.DataFrame, ridge: pl.Expr) -> pl.DataFrame:
    """Refuted rows keep the upper limit of their bytes (so their intensity is a lower one), and no share of the roof, which
    would be 1 by construction. Their side is given where even the fewest bytes put them on the memory side."""
    surely_memory = pl.col("flops") / pl.col("least_bytes") < ridge
    side = pl.when(surely_memory).then(pl.lit("memory"))
    return rows.with_columns(
        side=pl.when("refuted").then(side).otherwise("side"),
        roof_fraction=pl.when("refuted").then(None).otherwise("roof_fraction"),
    )
