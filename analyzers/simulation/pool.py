"""Planned requests (traces.requestlogs) as the loads of a pool's servers."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.simulation.arrays import Ints, Load
from analyzers.simulation.reuse import Blocks, blocks_of
from analyzers.simulation.setting import PAGE_TOKENS, Setting
from traces.clock import NS_PER_S
from traces.errors import NothingToAnalyze, UsageProblem

_FAMILY_SHARE = 4
LONGEST_NS = 31 * 86_400 * NS_PER_S  # of simulated time: per-second counts stay small


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one server gets. Rows are numbers of `Plan.frame`; the arrays have one entry per row."""

    server: int
    rows: Ints
    load: Load
    arrival_ns: Ints  # −1: after the turn before
    session: Ints  # −1: none
    last: NDArray[np.bool_]  # of its session; true where there is none
    tool_ns: Ints  # after the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All requests of the window, and how they are divided."""

    frame: pl.DataFrame
    shares: tuple[Share, ...]
    page_tokens: int
    block_tokens: int  # of a hash id; 0: nothing is known of common text
    left_out: int  # arrive after the window
    cut: int  # outputs shortened to max_model_len
    single: int  # outputs of 0 tokens, taken as 1
    closed: int  # requests that wait for the turn before
    unknown_waits: int  # of these, with neither tool nor think time: 0 is taken


def plan(frame: pl.DataFrame, setting: Setting, block_tokens: int | None) -> Plan:
    """Divide `frame` (PLANNED_COLUMNS). Raises UsageProblem where a request lacks what a simulation needs."""
    if frame.is_empty():
        raise NothingToAnalyze("there is no request to simulate", hint="give a log with requests")
    _check(frame)
    whole = frame.height
    if setting.window_ns is not None:
        due = pl.col("arrival_ns").forward_fill().over("session_id", order_by=["turn", "index"])
        frame = frame.filter((due < setting.window_ns).fill_null(value=True))
        if frame.is_empty():
            raise NothingToAnalyze("no request arrives within the window", hint="give a longer --minutes")
    frame = frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    chained = _chained(frame)
    blocks = blocks_of(frame, block_tokens) if setting.prefix_caching else Blocks.none(frame.height)
    block_tokens = blocks.tokens
    page = PAGE_TOKENS if block_tokens % PAGE_TOKENS == 0 else gcd(block_tokens, PAGE_TOKENS)
    prompt, output = frame["input_tokens"].to_numpy(), np.maximum(frame["output_tokens"].to_numpy(), 1)
    room = setting.kv_tokens // page
    refused, cut = -(-(prompt + output - 1) // page) > room, 0
    if setting.max_model_len is not None:
        refused = prompt >= setting.max_model_len
        shorter = np.where(refused, output, np.minimum(output, setting.max_model_len - prompt))
        cut, output = int((shorter < output).sum()), shorter
        refused |= -(-(prompt + output - 1) // page) > room
    servers = _servers(frame, setting)
    columns = {"prompt": prompt, "output": output, "refused": refused}
    return Plan(
        frame=frame, page_tokens=page, block_tokens=block_tokens, left_out=whole - frame.height, cut=cut,
        shares=tuple(_share(server, servers, chained, columns, blocks) for server in range(setting.pool)),
        single=int((frame["output_tokens"] < 1).sum()), closed=int(frame["arrival_ns"].null_count()),
        unknown_waits=_unknown_waits(frame),
    )  # fmt: skip


def _check(frame: pl.DataFrame) -> None:
    for column, least in (("input_tokens", 1), ("output_tokens", 0)):
        missing = int(frame.select((~(pl.col(column) >= least)).fill_null(value=True).sum()).item())
        if missing:
            raise UsageProblem(
                f"{missing:,} of {frame.height:,} requests have no {column.replace('_', ' ')}",
                hint="a simulation needs the lengths of prompts and outputs: give a log that has them",
            )
    latest = frame["arrival_ns"].max()
    if isinstance(latest, int) and latest >= LONGEST_NS:
        days = latest / NS_PER_S / 86_400
        raise UsageProblem(
            f"the log is {days:,.0f} days long; at most 31 are simulated",
            hint="give --first N or a faster --time-scale",
        )
    early = int((frame["arrival_ns"] < 0).sum())
    if early:
        raise UsageProblem(f"{early:,} requests arrive before the first one", hint="the log is damaged")


def _chained(frame: pl.DataFrame) -> pl.DataFrame:
    """By row: session number, the turn that waits for this one (row), whether it is the last of its session, waits."""
    waits = [pl.col(name).fill_null(0).clip(0, LONGEST_NS) for name in ("tool_wait_ns", "think_ns")]
    known = pl.col("session_id").is_not_null()
    ordered = frame.sort("session_id", "turn", "row", nulls_last=True).with_columns(
        session=pl.when(known).then(pl.col("session_id").rank("dense").cast(pl.Int64) - 1).otherwise(-1),
        following=pl.col("row").shift(-1).over("session_id"),
        following_waits=pl.col("arrival_ns").is_null().shift(-1).over("session_id"),
        preceding=pl.col("row").shift(1).over("session_id"),
        tool_ns=waits[0], wait_ns=waits[0] + waits[1],
    )  # fmt: skip
    orphans = int(
        ordered.select((pl.col("arrival_ns").is_null() & (~known | pl.col("preceding").is_null())).sum()).item()
    )
    if orphans:
        raise UsageProblem(
            f"{orphans:,} requests have no time of arrival and no turn before them",
            hint="a session's first turn needs a time: give an arrival process for the sessions",
        )
    return ordered.with_columns(
        follows=pl.when(known & pl.col("following_waits")).then(pl.col("following")).otherwise(-1).fill_null(-1),
        last=~known | pl.col("following").is_null(),
    ).sort("row")  # fmt: skip


def _unknown_waits(frame: pl.DataFrame) -> int:
    """Turns that another waits for, with no word on how long. The turn before carries the wait."""
    followed = pl.col("arrival_ns").is_null().shift(-1).over("session_id").fill_null(value=False)
    unknown = (
        pl.col("session_id").is_not_null() & followed & pl.col("tool_wait_ns").is_null() & pl.col("think_ns").is_null()
    )
    return int(frame.sort("session_id", "turn", "row").select(unknown.sum()).item())


def _servers(frame: pl.DataFrame, setting: Setting) -> Ints:
    """The server of each request.

    A session stays with one. By affinity so do prompts that begin alike, told by the first block that few others have;
    what is left is drawn, which thins the log's bursts without smoothing them. In turn, they are smoothed.
    """
    alone = pl.concat_str(pl.lit("row "), pl.col("row").cast(pl.String))
    unit = frame.select(
        "row", unit=pl.when(pl.col("session_id").is_null()).then(alone).otherwise("session " + pl.col("session_id"))
    )
    if setting.route == "affinity" and setting.pool > 1:
        families = _families(frame.filter(pl.col("session_id").is_null()), setting.pool)
        unit = unit.join(families, on="row", how="left", maintain_order="left")
        unit = unit.with_columns(unit=pl.coalesce("family", "unit"))
    units = unit["unit"].unique(maintain_order=True)
    if setting.route == "round-robin":
        choice = np.arange(len(units)) % setting.pool
    else:
        choice = np.random.default_rng(setting.seed).integers(setting.pool, size=len(units))
    chosen = pl.DataFrame({"unit": units, "server": choice.astype(np.int64)})
    return unit.join(chosen, on="unit", how="left", maintain_order="left")["server"].to_numpy()


def _families(frame: pl.DataFrame, pool: int) -> pl.DataFrame:
    """(row, family): the first block of the prompt that at most a quarter of a server's requests have, else none."""
    most = max(1, frame.height // (_FAMILY_SHARE * pool))
    blocks = frame.select("row", id="hash_ids").explode("id").drop_nulls()
    telling = blocks.with_columns(n=pl.len().over("id")).filter(pl.col("n") <= most)
    first = telling.group_by("row", maintain_order=True).agg(pl.col("id").first())
    return first.select("row", family=pl.concat_str(pl.lit("block "), pl.col("id").cast(pl.String)))


def _share(
    server: int, servers: Ints, chained: pl.DataFrame, columns: dict[str, NDArray[np.generic]], blocks: Blocks
) -> Share:
    rows = np.flatnonzero(servers == server).astype(np.int64)
    here = np.full(len(servers) + 1, -1, dtype=np.int64)  # the entry behind the end stands for no row
    here[rows] = np.arange(len(rows))
    part = chained[rows]
    blocks_at, ids = blocks.of(rows)
    load = Load(
        prompt=_whole(columns["prompt"][rows]), output=_whole(columns["output"][rows]),
        follows=here[part["follows"].to_numpy()], wait_ns=_whole(part["wait_ns"].to_numpy()),
        refused=np.array(columns["refused"][rows], dtype=np.bool_), blocks_at=blocks_at, blocks=ids,
    )  # fmt: skip
    return Share(
        server=server, rows=rows, load=load, arrival_ns=_whole(part["arrival_ns"].fill_null(-1).to_numpy()),
        session=_whole(part["session"].to_numpy()), last=np.array(part["last"].to_numpy(), dtype=np.bool_),
        tool_ns=_whole(part["tool_ns"].to_numpy()),
    )  # fmt: skip


def _whole(values: NDArray[np.generic]) -> Ints:
    """A writable, contiguous copy."""
    return np.array(values, dtype=np.int64)
