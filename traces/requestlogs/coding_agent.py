"""Coding-agent sessions as CSV: one row per call with prompt, output, and how much of the prompt was there before.

`lcp_prev_tokens` is what a prompt shares with the one before it, `cached_tokens_infcache` what it shares with any
earlier one of its session, both in whole blocks of 64. From these the blocks are named again: a prompt takes the leading
ids of the latest earlier prompt that agrees with both numbers, and new ids behind them. `t_s` counts from the start of
the session, so sessions begin at once. A wait is `think_time_s` of the next call, at most the time between the two calls,
and is a tool's where that call brings a tool's result, else a person's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from traces.errors import UnreadableInput
from traces.requestlogs.base import LogOptions, RequestLogFrame, settle, token_problem
from traces.requestlogs.csv_lines import decimal_ns, header_names, named_fields, whole

BLOCK_TOKENS = 64
_NEEDED = (
    "trace_id", "agent", "idx", "t_s", "in_tokens", "out_tokens", "lcp_prev_tokens", "cached_tokens_infcache",
    "think_time_s", "input_types",
)  # fmt: skip
_OPTIONAL = ("api_time_s",)
_MOST_BLOCKS = 1 << 17  # of one prompt: 8 million tokens
_MOST_IDS = 1 << 27  # of all prompts: a gigabyte

Ids = npt.NDArray[np.int64]


class CodingAgentFormat:
    """See the module."""

    name = "coding_agent"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line names the columns."""
        return set(_NEEDED) <= set(header_names(head.partition(b"\n")[0]))

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per row. Raises UnreadableInput without the header, without rows, or as options say."""
        fields = named_fields(path, _NEEDED, optional=_OPTIONAL)
        rows = fields.with_columns(
            session_id=pl.when(pl.col("agent") == "main").then("trace_id").otherwise(
                pl.format("{}/{}", "trace_id", "agent")
            ),
            order=whole("idx"),
            arrival_ns=decimal_ns("t_s"),
            input_tokens=whole("in_tokens"),
            output_tokens=whole("out_tokens"),
            shared_before=whole("lcp_prev_tokens"),
            shared_ever=whole("cached_tokens_infcache"),
            waited_ns=decimal_ns("think_time_s"),
            api_ns=decimal_ns("api_time_s") if "api_time_s" in fields.columns else pl.lit(None, dtype=pl.Int64),
        )  # fmt: skip
        rows = rows.with_columns(problem=_problem())
        bad = pl.col("problem").is_not_null()
        n_ids = int(rows.filter(~bad).select(pl.col("input_tokens").sum()).item()) // BLOCK_TOKENS
        if n_ids > _MOST_IDS:
            raise UnreadableInput(
                f"{path}: the prompts have {n_ids:,} blocks in all, more than {_MOST_IDS:,}",
                hint="replay a part of the file",
            )
        good = _with_waits(
            rows.filter(~bad).sort(pl.col("line").min().over("session_id"), "order", maintain_order=True)
        )
        return settle(
            pl.concat([good.with_columns(_hash_ids(good)), rows.filter(bad)], how="diagonal"), path=path,
            log_format=self.name, block_tokens=BLOCK_TOKENS, epoch=False, options=options,
            notes=("times count from the start of each session: how sessions lie to each other is not in the log",),
            closed=True,
        )  # fmt: skip


def _with_waits(rows: pl.DataFrame) -> pl.DataFrame:
    """Turns, and the wait behind each that the next call tells of."""
    gap = pl.col("arrival_ns").shift(-1).over("session_id") - pl.col("arrival_ns")
    told = pl.col("waited_ns").shift(-1).over("session_id").fill_null(gap - pl.col("api_ns"))
    wait = pl.when(told.is_not_null()).then(pl.min_horizontal(told, gap).clip(0))
    tool = pl.col("input_types").shift(-1).over("session_id").str.contains("tool_result", literal=True)
    rows = rows.with_columns(wait=wait, tool=tool, turn=pl.int_range(pl.len(), dtype=pl.Int64).over("session_id"))
    known, zero = pl.col("wait").is_not_null(), pl.lit(0, dtype=pl.Int64)
    return rows.with_columns(
        tool_wait_ns=pl.when(known).then(pl.when("tool").then("wait").otherwise(zero)),
        think_ns=pl.when(known).then(pl.when("tool").then(zero).otherwise("wait")),
    )


def _hash_ids(rows: pl.DataFrame) -> pl.Series:
    """Ids of the blocks of each prompt; rows of a session stand together in the order of their turns."""
    names = rows["session_id"].to_list()
    blocks = -(-rows["input_tokens"].to_numpy() // BLOCK_TOKENS)
    before, ever = (rows[name].to_numpy() // BLOCK_TOKENS for name in ("shared_before", "shared_ever"))
    ids: list[Ids] = []
    unused = start = 0
    for row, name in enumerate(names):
        start = row if row == 0 or names[row - 1] != name else start
        shared = int(ever[row])
        kept = _leading(ids[start:row], int(before[row]), shared)
        fresh = int(blocks[row]) - len(kept)
        ids.append(np.concatenate([kept, np.arange(unused, unused + fresh, dtype=np.int64)]))
        unused += fresh
    return pl.Series("hash_ids", ids, dtype=pl.List(pl.Int64))


def _leading(earlier: list[Ids], before: int, ever: int) -> Ids:
    """`ever` leading ids of the latest earlier prompt that shares `before` with the last one; fewer where none does."""
    if not earlier or ever == 0:
        return np.empty(0, dtype=np.int64)
    last = earlier[-1]
    if ever == before:
        return last[:ever]
    for prompt in reversed(earlier[:-1]):
        both = min(len(prompt), len(last), before + 1)
        if len(prompt) >= ever and int(np.cumprod(prompt[:both] == last[:both]).sum()) == before:
            return prompt[:ever]
    return last[:before]


def _problem() -> pl.Expr:
    shared = (
        token_problem("shared_before", "lcp_prev_tokens", least=0),
        token_problem("shared_ever", "cached_tokens_infcache", least=0),
    )
    return pl.coalesce(
        "width",
        pl.when(pl.col("trace_id") == "").then(pl.lit("trace_id is empty")),
        token_problem("order", "idx", least=0),
        pl.when(~pl.struct("session_id", "order").is_first_distinct()).then(pl.lit("the session has this idx already")),
        pl.when(pl.col("arrival_ns").is_null()).then(pl.lit("t_s is not a number of seconds from 0")),
        token_problem("input_tokens", "in_tokens", least=1),
        pl.when(pl.col("input_tokens") > _MOST_BLOCKS * BLOCK_TOKENS).then(pl.lit("in_tokens is beyond any prompt")),
        token_problem("output_tokens", "out_tokens", least=0),
        *shared,
        pl.when(pl.col("shared_before") > pl.col("shared_ever")).then(
            pl.lit("lcp_prev_tokens is more than cached_tokens_infcache")
        ),
        pl.when(pl.col("shared_ever") > pl.col("input_tokens")).then(
            pl.lit("cached_tokens_infcache is more than in_tokens")
        ),
    )
