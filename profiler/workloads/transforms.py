"""What may be done to arrivals, whether they come from a log or are made up: fewer, denser, slower, shorter, a share.

Applied in this order: first, pool and member, time_scale, rate_scale, length_scale, loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from profiler.workloads.arrivals import Arrivals, as_planned
from profiler.workloads.options import option
from traces.errors import UsageProblem
from traces.requestlogs.base import MAX_TOKENS

# What a prompt-block has to be shared by at most, to tell families of prompts apart: this share of a server's requests.
_FAMILY_SHARE = 4
_LEAST_SCALE, _MOST_SCALE = 1e-6, 1e6
_MOST = float(1 << 62)
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOptions:
    """Options that every workload of arrivals has."""

    first: int = option("first", "count", 0)  # only so many requests, the first to arrive; 0: all
    pool: int = option("pool", "count", 1, minimum=1, maximum=1_000_000)  # servers that share the load
    member: int = option("member", "count", 0)  # which of them this is, from 0
    time_scale: float = option("time_scale", "number", 1.0, minimum=_LEAST_SCALE, maximum=_MOST_SCALE)  # of all times
    rate_scale: float = option("rate_scale", "number", 1.0, minimum=_LEAST_SCALE, maximum=_MOST_SCALE)  # of arrivals
    length_scale: float = option("length_scale", "number", 1.0, minimum=_LEAST_SCALE, maximum=_MOST_SCALE)
    # open: each request at its time, whatever has been answered; closed: a turn waits for the one before and its waits
    loop: str = option("loop", "choice", "auto", choices=("auto", "open", "closed"))


def transformed(arrivals: Arrivals, options: TransformOptions) -> Arrivals:
    """`arrivals` as the options want them. Raises UsageProblem where that cannot be."""
    if options.member >= options.pool:
        raise UsageProblem(
            f"member={options.member} is none of a pool of {options.pool}",
            hint="members count from 0: write pool=K,member=I",
        )
    if options.first:
        arrivals = replace(arrivals, frame=arrivals.frame.head(options.first))
    arrivals = _member(arrivals, options.pool, options.member)
    arrivals = _timed(arrivals, options.time_scale, options.rate_scale)
    arrivals = _looped(_lengthened(arrivals, options.length_scale), options.loop)
    return replace(arrivals, frame=as_planned(arrivals.frame))


def _timed(arrivals: Arrivals, time_scale: float, rate_scale: float) -> Arrivals:
    """Arrivals closer together by rate_scale; arrivals and waits longer by time_scale."""
    if time_scale == 1.0 and rate_scale == 1.0:
        return arrivals
    scaled = {"arrival_ns": time_scale / rate_scale, "tool_wait_ns": time_scale, "think_ns": time_scale}
    return replace(
        arrivals, frame=arrivals.frame.with_columns(_rounded(pl.col(name) * by) for name, by in scaled.items())
    )


def _lengthened(arrivals: Arrivals, by: float) -> Arrivals:
    """Prompts, outputs and blocks `by` times as long; a prompt keeps a token, and an output that has any."""
    if by == 1.0:
        return arrivals
    frame = arrivals.frame.with_columns(
        _rounded(pl.col("input_tokens") * by).clip(1, MAX_TOKENS),
        pl.when(pl.col("output_tokens") == 0).then(0).otherwise(_rounded(pl.col("output_tokens") * by).clip(1, MAX_TOKENS)).alias(
            "output_tokens"
        ),
        _rounded(pl.col("prefix_tokens") * by).clip(0, MAX_TOKENS),
    )  # fmt: skip
    before = (pl.col("input_tokens") + pl.col("output_tokens")).shift(1).over("session_id").fill_null(0)
    shared = pl.min_horizontal(
        "prefix_tokens", "input_tokens", before
    )  # rounding may have made what was before shorter
    frame = frame.sort("session_id", "turn", maintain_order=True).with_columns(
        prefix_tokens=pl.when(pl.col("prefix_tokens").is_not_null()).then(shared)
    )
    frame = frame.sort("index")
    block = None if arrivals.block_tokens is None else arrivals.block_tokens * by
    return replace(arrivals, frame=frame, block_tokens=block)


def _looped(arrivals: Arrivals, loop: str) -> Arrivals:
    """Arrivals of the loop wanted: 'open' needs a time for every request, 'closed' takes it from all turns but the first."""
    frame, closed = arrivals.frame, loop == "closed" or (loop == "auto" and arrivals.closed)
    if not closed:
        if frame["arrival_ns"].null_count():
            raise UsageProblem(
                "this log has no time for every turn: an open loop is not possible", hint="use loop=closed"
            )
        return replace(arrivals, closed=False)
    if frame["session_id"].null_count() == frame.height:
        note = "there are no sessions: a closed loop is the same as an open one"
        return replace(arrivals, notes=(*arrivals.notes, note), closed=False)
    gap = pl.col("arrival_ns").shift(-1) - pl.col("arrival_ns")
    later = (pl.col("turn") > pl.col("turn").min()).over("session_id").fill_null(value=False)
    unknown = pl.col("tool_wait_ns").is_null() & pl.col("think_ns").is_null()
    frame = frame.sort("session_id", "turn", maintain_order=True).with_columns(gap=gap.over("session_id"))
    guessed = frame.filter(unknown & pl.col("gap").is_not_null()).height
    frame = frame.with_columns(
        pl.when(unknown & pl.col("session_id").is_not_null())
        .then(pl.col("gap").clip(0))
        .otherwise("think_ns")
        .alias("think_ns"),
        pl.when(~later).then("arrival_ns").alias("arrival_ns"),
    )
    notes = arrivals.notes
    if guessed:
        notes += (f"the waits behind {guessed:,} turns are the time from turn to turn, service included",)
    return replace(arrivals, frame=frame.sort("index").drop("gap"), closed=True, notes=notes)


def _member(arrivals: Arrivals, pool: int, member: int) -> Arrivals:
    """The requests of one of `pool` servers. Each session, else each family of prompts, stays on one of them.

    Who goes where is decided by a hash of the family, request by request where nothing is known to be shared: a share
    drawn independently of the time keeps how much likelier a further arrival is right after one, where dealing in turn
    would smooth it.
    """
    if pool == 1:
        return arrivals
    mine = (mixed(_families(arrivals.frame, pool)) >> np.uint64(11)) % np.uint64(pool) == np.uint64(member)
    note = f"server {member} of a pool of {pool}: {int(mine.sum()):,} of {arrivals.frame.height:,} requests"
    # the pool has one clock: a member's first request comes when it comes
    return replace(arrivals, frame=arrivals.frame.filter(pl.Series(mine)), notes=(*arrivals.notes, note))


def _families(frame: pl.DataFrame, pool: int) -> U64:
    """A number for each request, equal for those that belong on one server.

    The session where there is one; else the first block of the prompt that few others have (a block that everybody has, a
    system prompt, tells nobody apart); else the request itself.
    """
    alone = pl.int_range(pl.len(), dtype=pl.UInt64)
    if frame["session_id"].null_count() < frame.height:
        number = pl.col("session_id").rank("dense").cast(pl.UInt64)
        return frame.select(pl.coalesce(number, alone + frame.height)).to_series().to_numpy()
    if frame["hash_ids"].null_count() == frame.height:
        return frame.select(alone).to_series().to_numpy()
    most = max(1, frame.height // (_FAMILY_SHARE * pool))
    blocks = frame.select("index", "hash_ids").explode("hash_ids").drop_nulls()
    telling = blocks.with_columns(n=pl.len().over("hash_ids")).filter(pl.col("n") <= most)
    family = telling.group_by("index", maintain_order=True).agg(pl.col("hash_ids").first().alias("family"))
    last = blocks.group_by("index", maintain_order=True).agg(pl.col("hash_ids").last().alias("last"))
    joined = frame.select("index").join(family, on="index", how="left", maintain_order="left")
    joined = joined.join(last, on="index", how="left", maintain_order="left")
    named = pl.coalesce("family", "last").cast(pl.UInt64, wrap_numerical=True)
    return joined.select(pl.coalesce(named, alone + (1 << 63))).to_series().to_numpy()


def mixed(numbers: U64) -> U64:
    """A 64-bit mix of each number (splitmix64): the same on every machine."""
    value = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_value: U64 = value ^ (value >> np.uint64(31))
    return mixed_value


def _rounded(value: pl.Expr) -> pl.Expr:
    """To the nearest whole number, halves up: the same in every version of polars. What leaves 64 bits stays at the edge."""
    return (value + 0.5).floor().clip(0, _MOST).cast(pl.Int64)
