"""JSON lines with a fixed set of keys, read by columns; lines that are not of that form are told apart one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import polars as pl

_LINES_PER_CHUNK = 16_384

Schema = Mapping[str, pl.DataType]


def keyed_lines(lines: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Columns `line`, the keys of `schema` (NULL where missing or of another type), `problem` (text or NULL).

    `lines` has `line` and `text` without blank ones.
    """
    chunks = [
        _parse(lines.slice(start, _LINES_PER_CHUNK), schema) for start in range(0, lines.height, _LINES_PER_CHUNK)
    ]
    return pl.concat(chunks) if chunks else _parse(lines, schema)


def first_object(head: bytes) -> dict[str, object]:
    """The object in the first line of `head`; empty where that line is none or is cut off."""
    try:
        value = json.loads(head.lstrip().partition(b"\n")[0].decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _parse(lines: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """By columns; a chunk with a bad line goes by lines."""
    try:
        parsed = _columns("\n".join(lines["text"].to_list()), schema)
    except pl.exceptions.PolarsError:
        parsed = None
    if parsed is not None and parsed.height == lines.height:
        return parsed.with_columns(lines["line"], pl.lit(None, dtype=pl.String).alias("problem"))
    checked = [_checked(text, schema) for text in lines["text"].to_list()]
    parsed = _columns("\n".join(text for text, _ in checked), schema)
    problems = pl.Series("problem", [problem for _, problem in checked], dtype=pl.String)
    return parsed.with_columns(lines["line"], problems)


def _columns(text: str, schema: Schema) -> pl.DataFrame:
    if not text:
        return pl.DataFrame(schema=dict(schema))
    return pl.read_ndjson(io.BytesIO(text.encode()), schema=dict(schema))


def _checked(text: str, schema: Schema) -> tuple[str, str | None]:
    """The line with its known keys only, and what is wrong with it; `{}` in the place of a line that is no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "{}", "not JSON, or cut off"
    if not isinstance(value, dict):
        return "{}", "not a JSON object"
    kept = {key: value[key] for key, dtype in schema.items() if key in value and _fits(value[key], dtype)}
    return json.dumps(kept), None


def _fits(value: object, dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_fits(item, pl.Int64()) for item in value)
    if isinstance(value, bool):
        return False
    if dtype == pl.Float64():
        return isinstance(value, (int, float)) and abs(value) < 1e300
    return isinstance(value, int) and -(2**63) <= value < 2**63
