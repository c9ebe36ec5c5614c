"""JSON lines of `timestamp`, `input_length`, `output_length` and `hash_ids`: what the block formats have in common.

A hash id stands for a block of tokens, the last one of a prompt perhaps for a part of a block. Two prompts share exactly
the text of their common leading ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from traces.requestlogs.base import LogOptions, RequestLogFrame, read_lines, settle, token_problem
from traces.requestlogs.json_lines import Schema, first_object, keyed_lines

KEYS: Schema = {
    "timestamp": pl.Float64(),
    "input_length": pl.Int64(),
    "output_length": pl.Int64(),
    "hash_ids": pl.List(pl.Int64()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """What the formats differ in."""

    name: str
    block_tokens: int
    ns_per_unit: int  # of `timestamp`
    unit: str  # for people
    hashed: bool = True  # every prompt has ids for all of its blocks; else ids may be missing or end early


def block_rows(path: Path, form: BlockForm, options: LogOptions, extra: Schema | None = None) -> pl.DataFrame:
    """Rows for `settle`: line, the planned columns the keys give, those of `extra`, and problem."""
    lines = read_lines(path).filter(pl.col("text").is_not_null())
    rows = keyed_lines(lines, {**KEYS, **(extra or {})}).rename(
        {"input_length": "input_tokens", "output_length": "output_tokens"}
    )
    unit_ns = options.ns_per_unit or form.ns_per_unit
    most = (1 << 62) // unit_ns
    no_time = pl.when(~pl.col("timestamp").is_between(0, most).fill_null(value=False))
    return rows.with_columns(
        arrival_ns=(pl.col("timestamp").clip(0, most) * unit_ns).round().cast(pl.Int64, strict=False),
        problem=pl.coalesce(
            "problem",
            no_time.then(pl.lit(f"timestamp is not a number of {form.unit} from 0")),
            token_problem("input_tokens", "input_length", least=1),
            token_problem("output_tokens", "output_length", least=0),
            *_id_problems(form, options.block_tokens or form.block_tokens),
        ),
    )


def _id_problems(form: BlockForm, block: int) -> tuple[pl.Expr, pl.Expr]:
    ids = pl.col("hash_ids").list
    blocks = (pl.col("input_tokens") + (block - 1)) // block
    covers = ids.len() == blocks if form.hashed else ids.len() <= blocks
    holes = ids.drop_nulls().list.len() != ids.len()
    unhashed = (pl.col("hash_ids").is_null() | holes) if form.hashed else holes
    return (
        pl.when(unhashed).then(pl.lit("hash_ids is not a list of whole numbers")),
        pl.when(~covers).then(
            pl.format(f"{{}} hash ids for {{}} tokens in blocks of {block}", ids.len(), "input_tokens")
        ),
    )


def read_blocks(path: Path, form: BlockForm, options: LogOptions) -> RequestLogFrame:
    """One request per line. Raises UnreadableInput where no line is one, or as options say."""
    return settle(
        block_rows(path, form, options), path=path, log_format=form.name, epoch=False, options=options,
        block_tokens=options.block_tokens or form.block_tokens,
    )  # fmt: skip


def has_keys(head: bytes, *more: str) -> bool:
    """Whether the first line is an object with the four keys and `more`; only its start is looked at."""
    first = head.lstrip().partition(b"\n")[0]
    return first.startswith(b"{") and all(f'"{key}"'.encode() in first for key in (*KEYS, *more))


def fits_blocks(head: bytes, block: int) -> bool | None:
    """Whether the ids of the first line are as many as its tokens have blocks; None where the line is cut off."""
    first = first_object(head)
    ids, tokens = first.get("hash_ids"), first.get("input_length")
    if not isinstance(ids, list) or not isinstance(tokens, int):
        return None
    return len(ids) == -(-tokens // block)
