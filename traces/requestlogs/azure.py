"""Azure LLM inference traces (2023, 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`.

Two spellings of the time: `2023-11-16 18:17:03.9799600` and `2024-05-10 00:00:00.009930+00:00`. Both are read exactly
to the nanosecond; a time without an offset is taken as UTC. Columns go by name, extra ones are passed over.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traces.clock import NS_PER_S
from traces.requestlogs.base import LogOptions, RequestLogFrame, settle, token_problem
from traces.requestlogs.csv_lines import header_names, named_fields, whole

_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_DAY, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d"
_TIMESTAMP = rf"^({_DAY})[ T]({_TIME})(?:\.(\d{{1,9}}))?\s*(?:Z|UTC|([+-])(\d\d):?(\d\d))?$"


class AzureFormat:
    """See the module."""

    name = "azure"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line names the three columns."""
        return set(_COLUMNS) <= set(header_names(head.partition(b"\n")[0]))

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per row. Raises UnreadableInput without the header, without rows, or as options say."""
        fields = named_fields(path, _COLUMNS, spelled="TIMESTAMP, ContextTokens and GeneratedTokens")
        rows = fields.with_columns(
            arrival_ns=_nanoseconds(pl.col("timestamp")),
            input_tokens=whole("contexttokens"),
            output_tokens=whole("generatedtokens"),
        )
        no_time = pl.when(pl.col("arrival_ns").is_null()).then(pl.lit("TIMESTAMP is not a date and time"))
        rows = rows.with_columns(
            problem=pl.coalesce(
                "width",
                no_time,
                token_problem("input_tokens", "ContextTokens", least=1),
                token_problem("output_tokens", "GeneratedTokens", least=0),
            )
        )
        return settle(rows, path=path, log_format=self.name, block_tokens=None, epoch=True, options=options)


def _nanoseconds(text: pl.Expr) -> pl.Expr:
    """Nanoseconds since the epoch; NULL where `text` is no date and time."""
    part = text.str.extract_groups(_TIMESTAMP).struct.rename_fields(
        ["day", "time", "fraction", "sign", "hours", "minutes"]
    )
    moment = pl.concat_str(part.struct.field("day"), part.struct.field("time"), separator=" ")
    seconds = moment.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).dt.epoch("s")
    fraction_ns = part.struct.field("fraction").str.pad_end(9, "0").str.to_integer(strict=False).fill_null(0)
    hours, minutes = (
        part.struct.field(name).str.to_integer(strict=False).fill_null(0) for name in ("hours", "minutes")
    )
    offset = (hours * 3600 + minutes * 60) * pl.when(part.struct.field("sign") == "-").then(-1).otherwise(1)
    # Beyond these years nanoseconds leave 64 bits.
    sane = pl.when(seconds.is_between(-9_000_000_000, 9_000_000_000)).then(seconds)
    return (sane - offset) * NS_PER_S + fraction_ns
