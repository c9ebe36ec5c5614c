"""CSV files whose columns go by name: the fields of each line as text.

Quoted fields are stripped of their quotes; none of the formats read here has a comma inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from traces.clock import NS_PER_S
from traces.errors import UnreadableInput
from traces.requestlogs.base import read_lines

_DECIMAL = r"^(\d{1,10})(?:\.(\d{1,9})\d*)?$"
_MOST_S = 9e9  # beyond, nanoseconds leave 64 bits


def header_names(first_line: bytes | str) -> list[str]:
    """Names in a header line, lower case."""
    text = first_line.decode(errors="replace") if isinstance(first_line, bytes) else first_line
    return [name.strip().strip('"').lower() for name in text.removeprefix("\ufeff").split(",")]


def named_fields(
    path: Path, needed: Sequence[str], *, optional: Sequence[str] = (), spelled: str | None = None
) -> pl.DataFrame:
    """Columns `line`, `width` (text or NULL: what is wrong with the number of fields), and each name that is there.

    Names in lower case, as the columns are then called; the fields are text. Raises UnreadableInput without a header
    that has all of `needed`; `spelled` is how the message lists them.
    """
    lines = read_lines(path)
    names = header_names(lines["text"][0] or "")
    if not set(needed) <= set(names):
        raise UnreadableInput(
            f"{path}:1: the columns {spelled or ', '.join(needed)} are not named",
            hint="give the CSV with its header line",
        )
    fields = pl.col("fields")
    wanted = [name for name in (*needed, *optional) if name in names]
    rows = lines.slice(1).filter(pl.col("text").is_not_null())
    rows = rows.select("line", fields=pl.col("text").str.split(",")).with_columns(n_fields=fields.list.len())
    width = pl.when(pl.col("n_fields") != len(names)).then(
        pl.format("{} fields where the header names {}", "n_fields", pl.lit(len(names)))
    )
    values = (
        fields.list.get(names.index(name), null_on_oob=True).str.strip_chars().str.strip_chars('"').alias(name)
        for name in wanted
    )
    return rows.select("line", *values, width=width)


def whole(column: str) -> pl.Expr:
    """The text of `column` as an integer; NULL where it is none."""
    return pl.col(column).str.to_integer(strict=False)


def decimal_ns(column: str) -> pl.Expr:
    """Seconds written as a decimal number, in ns, exact to the nanosecond; NULL where it is none or below 0."""
    part = pl.col(column).str.extract_groups(_DECIMAL).struct.rename_fields(["whole", "fraction"])
    whole_s = part.struct.field("whole").str.to_integer(strict=False)
    fraction_ns = part.struct.field("fraction").str.pad_end(9, "0").str.to_integer(strict=False).fill_null(0)
    exact = pl.when(whole_s <= int(_MOST_S)).then(whole_s * NS_PER_S + fraction_ns)
    loose = pl.col(column).cast(pl.Float64, strict=False)  # such as 1e-05
    sane = pl.when(loose.is_between(0, _MOST_S)).then(loose)
    return exact.fill_null((sane * NS_PER_S).round().cast(pl.Int64, strict=False))
