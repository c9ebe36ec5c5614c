"""BurstGPT: `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, times in seconds.

Later releases have `Session ID` and `Elapsed time` (seconds from the request to the end of its answer) as well. Columns
go by name. A row without prompt tokens is a request that failed: it is left out and counted. One without response
tokens, a prompt that got no answer, stays.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traces.requestlogs.base import LogOptions, RequestLogFrame, settle, token_problem
from traces.requestlogs.csv_lines import decimal_ns, header_names, named_fields, whole

_NEEDED = ("timestamp", "request tokens", "response tokens")
_SESSION, _ELAPSED = "session id", "elapsed time"


class BurstGptFormat:
    """See the module."""

    name = "burstgpt"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line names the three columns."""
        return set(_NEEDED) <= set(header_names(head.partition(b"\n")[0]))

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per row. Raises UnreadableInput without the header, without rows, or as options say."""
        fields = named_fields(
            path, _NEEDED, optional=(_SESSION, _ELAPSED), spelled="Timestamp, Request tokens and Response tokens"
        )
        rows = fields.with_columns(
            arrival_ns=decimal_ns("timestamp"),
            input_tokens=whole("request tokens"),
            output_tokens=whole("response tokens"),
        )
        rows = rows.with_columns(
            problem=pl.coalesce(
                "width",
                pl.when(pl.col("arrival_ns").is_null()).then(pl.lit("Timestamp is not a number of seconds from 0")),
                token_problem("input_tokens", "Request tokens", least=0),
                token_problem("output_tokens", "Response tokens", least=0),
            )
        )
        failed = pl.col("problem").is_null() & (pl.col("input_tokens") == 0)
        n_failed = rows.filter(failed).height
        rows = _with_sessions(rows.filter(~failed))
        notes = (f"{n_failed:,} rows without prompt tokens, requests that failed, are left out",) if n_failed else ()
        return settle(
            rows, path=path, log_format=self.name, block_tokens=None, epoch=False, options=options, notes=notes
        )


def _with_sessions(rows: pl.DataFrame) -> pl.DataFrame:
    """Session, turn, and the think time up to the next turn as far as the elapsed time tells it."""
    if _SESSION not in rows.columns:
        return rows
    named = pl.col(_SESSION) != ""
    rows = rows.with_columns(session_id=pl.when(named).then(pl.format("session-{}", _SESSION)))
    good = rows.filter(pl.col("problem").is_null() & pl.col("session_id").is_not_null()).sort(
        "arrival_ns", maintain_order=True
    )
    gap = pl.col("arrival_ns").shift(-1).over("session_id") - pl.col("arrival_ns")
    elapsed = decimal_ns(_ELAPSED) if _ELAPSED in rows.columns else pl.lit(None, dtype=pl.Int64)
    turns = good.select(
        "line",
        turn=pl.int_range(pl.len(), dtype=pl.Int64).over("session_id"),
        think_ns=(gap - elapsed).clip(0),
    )
    return rows.join(turns, on="line", how="left", maintain_order="left")
