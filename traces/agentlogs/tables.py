"""Logs that are CSV: rows as text with their line numbers, and counts in them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traces.agentlogs.base import MAX_TOKENS, Head, Reading
from traces.errors import UnreadableInput


def read_csv(head: Head, reading: Reading, needed: Sequence[str]) -> pl.DataFrame:
    """All columns as text under small names, and `line`; rows with too few fields are noted and left out."""
    try:
        frame = pl.read_csv(head.path, infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=True)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableInput(
            f"cannot read {head.path} as CSV: {str(error)[:200]}", hint="give the CSV with its header line"
        ) from error
    names = [name.removeprefix("\ufeff").strip().strip('"').lower() for name in frame.columns]
    if len(set(names)) != len(names):
        raise UnreadableInput(f"{head.path} names a column twice", hint="give the CSV as it was published")
    missing = [name for name in needed if name not in names]
    if missing:
        raise UnreadableInput(f"{head.path}:1: no column {missing[0]}", hint="give the CSV with its header line")
    frame.columns = names
    frame = frame.with_columns(line=pl.int_range(2, pl.len() + 2, dtype=pl.Int64))
    empty = pl.any_horizontal(pl.col(name).is_null() for name in needed)
    for line in frame.filter(empty)["line"].to_list():
        reading.bad(head.path, line, f"a row without {', '.join(needed)}")
    return frame.filter(~empty)


def counted(column: str) -> pl.Expr:
    """A column of text as counts of tokens; NULL where it is none."""
    number = pl.col(column).str.strip_chars().str.to_integer(strict=False)
    return pl.when(number.is_between(0, MAX_TOKENS)).then(number).alias(column)


def seconds_ns(column: str) -> pl.Expr:
    """A column of text in seconds as ns; NULL where it is none."""
    number = pl.col(column).str.strip_chars().cast(pl.Float64, strict=False)
    return pl.when(number.is_between(0, 4e9)).then((number * 1e9).round().cast(pl.Int64, strict=False)).alias(column)
