"""TraceLab replay CSV: agent sessions in rounds, `session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms`.

A round's prompt is `prefix_len` tokens of the context before it (the prompt of the round before and its output) and
`input_len` new ones. `arrival_time` (ms), where there is one, is when the session begins; without it all begin at once.
A closed loop: a round is due when the tools of the one before have run for `tool_wait_after_ms`.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traces.clock import NS_PER_MS, NS_PER_S
from traces.requestlogs.base import LogOptions, RequestLogFrame, settle, token_problem
from traces.requestlogs.csv_lines import decimal_ns, header_names, named_fields, whole

_NEEDED = ("session_id", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
_ARRIVAL = "arrival_time"
_MS_PER_S = NS_PER_S // NS_PER_MS


class TraceLabFormat:
    """See the module."""

    name = "tracelab"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line names the columns."""
        return set(_NEEDED) <= set(header_names(head.partition(b"\n")[0]))

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per row. Raises UnreadableInput without the header, without rows, or as options say."""
        fields = named_fields(path, _NEEDED, optional=(_ARRIVAL,))
        start = decimal_ns(_ARRIVAL) // _MS_PER_S if _ARRIVAL in fields.columns else pl.lit(0, dtype=pl.Int64)
        rows = fields.with_columns(
            turn=whole("round_idx"),
            prefix=whole("prefix_len"),
            new=whole("input_len"),
            output_tokens=whole("output_len"),
            tool_wait_ns=decimal_ns("tool_wait_after_ms") // _MS_PER_S,
            start_ns=start,
        )
        rows = rows.with_columns(input_tokens=pl.col("prefix") + pl.col("new"), problem=_problem())
        bad = pl.col("problem").is_not_null()
        good = _sessions(rows.filter(~bad))
        opening = good.filter((pl.col("turn") == 0) & (pl.col("prefix") > 0)).height
        notes = ("what first rounds share with other sessions is not in the log: their prefix is new text",)
        return settle(
            pl.concat([good, rows.filter(bad)], how="diagonal"), path=path, log_format=self.name, block_tokens=None,
            epoch=False, options=options, notes=notes if opening else (), closed=True,
        )  # fmt: skip


def _sessions(rows: pl.DataFrame) -> pl.DataFrame:
    """Rounds in order within their session, sessions in the file's; only the first of a session has an arrival."""
    rows = rows.sort(pl.col("line").min().over("session_id"), "turn", maintain_order=True)
    rows = rows.with_columns(turn=pl.int_range(pl.len(), dtype=pl.Int64).over("session_id"))
    first = pl.col("turn") == 0
    before = (pl.col("input_tokens") + pl.col("output_tokens")).shift(1).over("session_id")
    return rows.with_columns(
        session_id=pl.format("session-{}", "session_id"),
        arrival_ns=pl.when(first).then("start_ns"),
        prefix_tokens=pl.when(first).then(0).otherwise(pl.min_horizontal("prefix", before)),
        think_ns=pl.lit(0, dtype=pl.Int64),
    )


def _problem() -> pl.Expr:
    return pl.coalesce(
        "width",
        pl.when(pl.col("session_id") == "").then(pl.lit("session_id is empty")),
        token_problem("turn", "round_idx", least=0),
        token_problem("prefix", "prefix_len", least=0),
        token_problem("new", "input_len", least=0),
        pl.when(pl.col("prefix") + pl.col("new") == 0).then(pl.lit("prefix_len and input_len are both 0")),
        token_problem("output_tokens", "output_len", least=0),
        pl.when(pl.col("tool_wait_ns").is_null()).then(pl.lit("tool_wait_after_ms is not a number of ms from 0")),
        pl.when(pl.col("start_ns").is_null()).then(pl.lit("arrival_time is not a number of ms from 0")),
        pl.when(~pl.struct("session_id", "turn").is_first_distinct()).then(
            pl.lit("the session has this round already")
        ),
    )
