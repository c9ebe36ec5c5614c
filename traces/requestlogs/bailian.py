"""Qwen-Bailian usage traces: the keys of Mooncake in seconds and blocks of 16, and the chat each request continues.

`chat_id` names a request and `parent_chat_id` the one before it in its conversation (-1: none). A session is what hangs
together through parents; its turns are numbered in order of arrival, as a conversation may branch. A parent outside the
file is taken as the root of its children.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traces.clock import NS_PER_S
from traces.requestlogs.base import LogOptions, RequestLogFrame, settle
from traces.requestlogs.blocks import BlockForm, block_rows, has_keys
from traces.requestlogs.json_lines import Schema

_FORM = BlockForm(name="bailian", block_tokens=16, ns_per_unit=NS_PER_S, unit="seconds", hashed=False)
_CHAT: Schema = {"chat_id": pl.Int64(), "parent_chat_id": pl.Int64()}
_DOUBLINGS = 40  # each doubles the length of the chain followed; what does not end by then goes in circles


class BailianFormat:
    """See the module."""

    name = _FORM.name

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line has the keys of a block format and `parent_chat_id`."""
        return has_keys(head, *_CHAT)

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per line. Raises UnreadableInput where no line is one, or as options say."""
        rows = block_rows(path, _FORM, options, _CHAT)
        known = pl.col("chat_id").is_not_null()
        rows = rows.with_columns(
            problem=pl.coalesce(
                "problem",
                pl.when(~known).then(pl.lit("chat_id is not a whole number")),
                pl.when(known & ~pl.col("chat_id").is_first_distinct()).then(pl.lit("chat_id is given twice")),
            )
        )
        good = rows.filter(pl.col("problem").is_null())
        roots = _roots(good.select("chat_id", "parent_chat_id"))
        rows = rows.join(roots, on="chat_id", how="left", maintain_order="left").with_columns(
            problem=pl.coalesce(
                "problem", pl.when(pl.col("circular")).then(pl.lit("parent_chat_id leads back to the same chat"))
            ),
            session_id=pl.format("chat-{}", "root"),
        )
        turn = pl.col("arrival_ns").rank("ordinal").over("session_id").cast(pl.Int64) - 1
        fine = rows.filter(pl.col("problem").is_null()).with_columns(turn=turn).select("line", "turn")
        rows = rows.join(fine, on="line", how="left", maintain_order="left")
        return settle(
            rows, path=path, log_format=self.name, epoch=False, options=options,
            block_tokens=options.block_tokens or _FORM.block_tokens,
        )  # fmt: skip


def _roots(chats: pl.DataFrame) -> pl.DataFrame:
    """chat_id, root (the first chat of its conversation, or the parent outside the file), circular."""
    parent = pl.col("parent_chat_id")
    up = chats.select("chat_id", root=pl.when(parent.is_null() | (parent < 0)).then("chat_id").otherwise(parent))
    for _ in range(_DOUBLINGS):
        above = up.select(root="chat_id", above="root")
        joined = up.join(above, on="root", how="left", maintain_order="left")
        further = joined.select("chat_id", root=pl.coalesce("above", "root"))
        if further["root"].equals(up["root"]):
            return up.with_columns(circular=pl.lit(value=False))
        up = further
    above = up.select(root="chat_id", above="root")
    moving = up.join(above, on="root", how="left", maintain_order="left")
    return moving.select("chat_id", "root", circular=(pl.col("above") != pl.col("root")).fill_null(value=False))
