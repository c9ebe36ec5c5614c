"""`prompts.parquet` of a run directory → staging table `prompts`: keys that tell where prompts are equal, and segments.

Written by profiler/prompts.py, whose docstring says what the keys are.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink

_NAME = "prompts.parquet"
_MAGIC = b"PAR1"
_COLUMNS: dict[str, pl.DataType] = {
    "client_request_id": pl.String(), "pass": pl.String(), "prompt_tokens": pl.Int64(), "prefix_keys": pl.List(pl.UInt64()),
    "tail_keys": pl.List(pl.UInt64()), "segment_roles": pl.List(pl.String()), "segment_starts": pl.List(pl.Int64()),
}  # fmt: skip
_ROLES = ("system", "tools", "document", "user", "assistant", "observation")


class PromptsReader:
    """See the module."""

    name = "prompts"

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether it is a parquet file of that name."""
        return path.name == _NAME and head.startswith(_MAGIC)

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:  # noqa: ARG002
        """Append `prompts`, one row per request; a row that contradicts itself is left out and counted.

        Raises UnreadableInput where the file is torn or holds other columns.
        """
        report = ReadReport(path=path, format=self.name)
        try:
            data = path.read_bytes()
            rows = pl.read_parquet(data, columns=list(_COLUMNS)).cast(dict(_COLUMNS))  # type: ignore[arg-type]
        except OSError as error:
            raise UnreadableInput(
                f"cannot read {path}: {error.strerror}", hint="give the directory of a run"
            ) from error
        except pl.exceptions.PolarsError as error:
            raise UnreadableInput(
                f"{path} holds no keys of prompts: {error}", hint="was the run killed as it wrote it?"
            ) from error
        report.sha256, report.bytes_read, report.events = hashlib.sha256(data).hexdigest(), len(data), rows.height
        good = rows.filter(_whole()).with_columns(
            _segments("segment_roles"), _segments("segment_starts"), _segments("tail_keys")
        )
        if good.height < rows.height:
            report.dropped["contradicts itself"] = rows.height - good.height
        report.kept["prompts"] = good.height
        sink.append("prompts", good.select(pl.lit(src, dtype=pl.UInt32).alias("src"), pl.all()).to_arrow())
        return report


def _whole() -> pl.Expr:
    keys = pl.col("prefix_keys")
    return (
        pl.col("client_request_id").is_not_null() & (pl.col("prompt_tokens") > 0)
        & (keys.list.len() >= pl.col("prompt_tokens")) & (keys.list.drop_nulls().list.len() == keys.list.len())
    ).fill_null(value=False)  # fmt: skip


def _segments(column: str) -> pl.Expr:
    """The column where the segments tile the prompt, else NULL."""
    starts, roles = pl.col("segment_starts"), pl.col("segment_roles")
    fits = (
        (starts.list.len() == roles.list.len()) & (starts.list.first() == 0) & (starts.list.diff().list.min().fill_null(1) > 0)
        & (starts.list.last() < pl.col("prompt_tokens")) & (pl.col("tail_keys").list.len() == pl.col("prompt_tokens"))
        & roles.list.eval(pl.element().is_in(_ROLES)).list.all()
    )  # fmt: skip
    return pl.when(fits.fill_null(value=False)).then(pl.col(column)).alias(column)
