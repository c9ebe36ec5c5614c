"""Sums per session: what of its prompts was cached, fresh, sent back and lost, and the shares of these."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from analyzers.agentlog_kernel import gather
from analyzers.agentlog_pieces import LOST, PIECES
from analyzers.agentlog_replay import Replayed
from traces.agentlogs.base import Batch
from traces.printable import utf8

Ints = npt.NDArray[np.int64]

SESSIONS_KEPT = 200_000  # further ones share one row
_GLOBAL_IDS = ("claude-code", "codex")  # a session's id is the same in every file
SUMS = (
    "turns", "prompt_tokens", "output_tokens", "told_turns", "told_prompt_tokens", "told_cached_tokens",
    "missed_tokens", "beyond_tokens", "later_computed_tokens", "later_fresh_tokens", "tool_steps", "tool_waits", "tool_ns", "api_waits",
    "api_ns", "shorter_prompts",
)  # fmt: skip


class SessionSums:
    """Sessions numbered together: those found by units, and those of logs with lengths only."""

    def __init__(self, key: int, *, costed: bool) -> None:
        self.key = key
        self.names: dict[tuple[str, str], int] = {}
        self.labels: dict[int, tuple[str, str | None, str, str]] = {}  # session, parent, format, file
        width = len(SUMS) + len(PIECES) * (2 if costed else 1)
        self.sums = np.zeros((1, width), dtype=np.int64)
        self.first_ns = np.zeros(0, dtype=np.int64)
        self.last_ns = np.zeros(0, dtype=np.int64)

    def numbers(self, batch: Batch, begin: int) -> Ints:
        """Of a batch's rows; -1 where a row has no session. New sessions get numbers from `begin` on."""
        place = "" if batch.format in _GLOBAL_IDS else str(batch.path)
        names = batch.requests.select("session", "parent_session").unique(maintain_order=True)
        found: dict[str, int] = {}
        for name, parent in names.iter_rows():
            if name is None or name in found:
                continue
            if (place, name) not in self.names:
                self.names[place, name] = begin
                if begin < SESSIONS_KEPT:
                    self.labels[begin] = (name, parent, batch.format, utf8(batch.path.name))
                begin += 1
            found[name] = self.names[place, name]
        if not found:
            return np.full(batch.requests.height, -1, dtype=np.int64)
        return batch.requests["session"].replace_strict(found, default=-1, return_dtype=pl.Int64).to_numpy().copy()

    def add(self, sessions: Ints, values: Ints, starts: Ints, ends: Ints) -> None:
        """Sum up a batch. starts and ends in ns, 0 and below where they are not known."""
        last = min(int(sessions.max(initial=0)), SESSIONS_KEPT)
        if len(self.sums) <= last:
            room = min(max(last + 1, len(self.sums) * 3 // 2), SESSIONS_KEPT + 1)
            self.sums = np.concatenate(
                [self.sums, np.zeros((room - len(self.sums), self.sums.shape[1]), dtype=np.int64)]
            )
        if len(self.first_ns) < len(self.sums):
            more = len(self.sums) - len(self.first_ns)
            self.first_ns = np.concatenate([self.first_ns, np.full(more, np.iinfo(np.int64).max)])
            self.last_ns = np.concatenate([self.last_ns, np.full(more, np.iinfo(np.int64).min)])
        gather(sessions, values, self.sums)
        at, known = np.minimum(sessions, SESSIONS_KEPT), starts >= 0
        np.minimum.at(self.first_ns, at[known], starts[known])
        np.maximum.at(self.last_ns, at[known], ends[known])


def values_of(requests: pl.DataFrame, found: Replayed, pieces: Ints, spent: Ints | None) -> Ints:
    """Columns SUMS, PIECES, and ns of PIECES if there is a cost."""
    total, cached = found.facts.total, pieces[:, 0]
    told = requests["cached_tokens"]
    known = told.is_not_null().to_numpy()
    said = told.fill_null(0).to_numpy()
    later = (found.facts.before_in >= 0).astype(np.int64)
    columns = {
        "turns": np.ones(len(total), dtype=np.int64), "prompt_tokens": total,
        "output_tokens": requests["output_tokens"].to_numpy(), "told_turns": known.astype(np.int64),
        "told_prompt_tokens": np.where(known, total, 0), "told_cached_tokens": said,
        "missed_tokens": np.where(known, np.clip(cached - said, 0, None), 0),
        "beyond_tokens": np.where(known, np.clip(said - cached, 0, None), 0),
        "later_computed_tokens": later * (total - cached), "later_fresh_tokens": later * pieces[:, -1],
        "tool_steps": requests["tool_step"].fill_null(value=False).cast(pl.Int64).to_numpy(),
        **_waits(requests, "tool_wait_ns", "tool"), **_waits(requests, "api_ns", "api"),
        "shorter_prompts": (total < found.facts.before_in).astype(np.int64),
    }  # fmt: skip
    parts = [columns[name][:, None] for name in SUMS] + [pieces] + ([] if spent is None else [spent])
    table: Ints = np.concatenate(parts, axis=1, dtype=np.int64)
    return table


def _waits(requests: pl.DataFrame, column: str, name: str) -> dict[str, Ints]:
    known = requests[column].is_not_null().cast(pl.Int64).to_numpy()
    return {f"{name}_waits": known, f"{name}_ns": requests[column].fill_null(0).to_numpy()}


def session_frame(space: SessionSums, kind: str) -> pl.DataFrame:
    names = [*SUMS, *(f"{name}_tokens" for name in PIECES)]
    if space.sums.shape[1] > len(names):
        names += [f"{name}_ns" for name in PIECES]
    rows = np.flatnonzero(space.sums[:, 0] > 0)
    sums = space.sums[rows]
    frame = pl.DataFrame({name: sums[:, i] for i, name in enumerate(names)})
    labels = [label_of(space, int(number)) for number in rows]
    first, last = space.first_ns[rows], space.last_ns[rows]
    lasted = np.where(last >= first, last - np.where(last >= first, first, 0), -1)
    return frame.with_columns(
        pl.Series("session", [item[0] for item in labels], dtype=pl.String),
        pl.Series("parent_session", [item[1] for item in labels], dtype=pl.String),
        pl.Series("format", [item[2] for item in labels], dtype=pl.String),
        pl.Series("file", [item[3] for item in labels], dtype=pl.String),
        wall_ns=pl.when(pl.Series(lasted) > 0).then(pl.Series(lasted)), _space=pl.lit(space.key), _session=pl.Series(rows),
        found_by=pl.lit(kind),
    )  # fmt: skip


def label_of(space: SessionSums, number: int) -> tuple[str, str | None, str | None, str | None]:
    if number >= SESSIONS_KEPT:
        return "all later sessions", None, None, None
    return space.labels.get(number) or (f"#{number + 1}", None, None, None)


def with_ratios(frame: pl.DataFrame) -> pl.DataFrame:
    """Shares of sums of one or many sessions; NULL where the log does not tell or there is nothing to divide by."""
    lost = pl.sum_horizontal(f"{name}_tokens" for name in LOST)
    computed = pl.col("prompt_tokens") - pl.col("cached_tokens")
    timed = [name for name in (f"{piece}_ns" for piece in PIECES) if name in frame.columns]
    found = frame.with_columns(
        lost_tokens=lost, computed_tokens=computed, hit_ratio=pl.col("cached_tokens") / pl.col("prompt_tokens"),
        recorded_cached_tokens=pl.when(pl.col("told_turns") > 0).then("told_cached_tokens"),
        recorded_hit_ratio=_over("told_cached_tokens", "told_prompt_tokens"),
        missed_tokens=pl.when(pl.col("told_turns") > 0).then("missed_tokens"),
        beyond_tokens=pl.when(pl.col("told_turns") > 0).then("beyond_tokens"),
        amplification=_over("later_computed_tokens", "later_fresh_tokens"),
        tool_ns=pl.when(pl.col("tool_waits") > 0).then("tool_ns"), api_ns=pl.when(pl.col("api_waits") > 0).then("api_ns"),
    ).with_columns(amplification_with_first=_over("computed_tokens", "fresh_tokens"))  # fmt: skip
    if "wall_ns" in found.columns:
        found = found.with_columns(tool_share=pl.col("tool_ns") / pl.col("wall_ns"))
    if timed:
        found = found.with_columns(prefill_floor_ns=pl.sum_horizontal(timed))
    return found


def _over(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))
