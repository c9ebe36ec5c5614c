"""Which blocks of text the prompts of a log have in common, as ids per request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzers.simulation.arrays import Ints
from analyzers.simulation.machine import compiled

SESSION_BLOCK_TOKENS = 128  # where a log knows common prefixes to the token


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Ids of full blocks, request after request: equal ids mean equal text up to there."""

    tokens: int  # of a block; 0: nothing is known
    at: Ints  # n + 1 offsets
    ids: Ints

    @classmethod
    def none(cls, n: int) -> Blocks:
        """Nothing in common."""
        return cls(tokens=0, at=np.zeros(n + 1, dtype=np.int64), ids=np.zeros(0, dtype=np.int64))

    def of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Offsets and ids of some requests, ids numbered from 0."""
        counts = np.diff(self.at)[rows]
        at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        picked = np.arange(at[-1], dtype=np.int64) + np.repeat(self.at[rows] - at[:-1], counts)
        return at, np.unique(self.ids[picked], return_inverse=True)[1].ravel().astype(np.int64)


def blocks_of(frame: pl.DataFrame, block_tokens: int | None) -> Blocks:
    """From `hash_ids` in blocks of `block_tokens`, else from `prefix_tokens`; `frame` (PLANNED_COLUMNS) has `row`."""
    if block_tokens and frame["hash_ids"].null_count() < frame.height:
        return _hashed(frame, block_tokens)
    if "prefix_tokens" in frame.columns and frame["prefix_tokens"].null_count() < frame.height:
        return _prefixed(frame)
    return Blocks.none(frame.height)


def _hashed(frame: pl.DataFrame, block_tokens: int) -> Blocks:
    """Full blocks of the prompt, up to the first id that comes twice in it, which no text has."""
    full = pl.col("hash_ids").list.head(pl.col("input_tokens") // block_tokens)
    found = frame.select("row", id=full).explode("id").drop_nulls()
    again = ~pl.struct("row", "id").is_first_distinct()
    found = found.filter(again.cast(pl.Int64).cum_sum().over("row") == 0)
    counts = np.bincount(found["row"].to_numpy(), minlength=frame.height)
    at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Blocks(tokens=block_tokens, at=at, ids=found["id"].to_numpy())


def _prefixed(frame: pl.DataFrame) -> Blocks:
    """Of a turn's prompt and output: those within the common prefix are the turn before's, the others are new."""
    ordered = frame.sort("session_id", "turn", "row", nulls_last=True).with_columns(
        first=pl.col("session_id").is_null() | pl.col("session_id").is_first_distinct()
    )
    row, prompt, output = (ordered[name].to_numpy() for name in ("row", "input_tokens", "output_tokens"))
    counts = np.zeros(frame.height, dtype=np.int64)
    counts[row] = (prompt + output) // SESSION_BLOCK_TOKENS
    at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    shared = ordered["prefix_tokens"].fill_null(0).clip(0).to_numpy() // SESSION_BLOCK_TOKENS
    shared = np.where(ordered["first"].to_numpy(), 0, np.minimum(shared, prompt // SESSION_BLOCK_TOKENS))
    ids = np.zeros(int(at[-1]), dtype=np.int64)
    _inherit(np.array(row), at, np.array(shared, dtype=np.int64), ids)
    return Blocks(tokens=SESSION_BLOCK_TOKENS, at=at, ids=ids)


@compiled
def _inherit(row: Ints, at: Ints, shared: Ints, ids: Ints) -> None:
    """Rows in order of session and turn; `shared`: blocks taken over from the row before."""
    new = 0
    for i in range(len(row)):
        start, end = at[row[i]], at[row[i] + 1]
        kept = 0
        if i > 0:
            before, before_end = at[row[i - 1]], at[row[i - 1] + 1]
            kept = min(shared[i], before_end - before, end - start)
            for j in range(kept):
                ids[start + j] = ids[before + j]
        for j in range(start + kept, end):
            ids[j] = new
            new += 1
