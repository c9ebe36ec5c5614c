"""Mooncake traces: JSON lines of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

A hash id stands for a block of 512 tokens and everything before it, so two prompts share exactly the text of their
common leading ids. The last block of a prompt may be partial. Published timestamps come in steps of 3 s.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl

from traces.clock import NS_PER_MS
from traces.requestlogs.base import LogOptions, RequestLogFrame, read_lines, settle, token_problem

BLOCK_TOKENS = 512
_LINES_PER_CHUNK = 16_384
_MAX_MS = (1 << 62) // NS_PER_MS
_KEYS: dict[str, pl.DataType] = {
    "timestamp": pl.Float64(),
    "input_length": pl.Int64(),
    "output_length": pl.Int64(),
    "hash_ids": pl.List(pl.Int64()),
}


class MooncakeFormat:
    """See the module."""

    name = "mooncake"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line is an object with the four keys; only its start is looked at."""
        first = head.lstrip().partition(b"\n")[0]
        return first.startswith(b"{") and all(f'"{key}"'.encode() in first for key in _KEYS)

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per line. Raises UnreadableInput where no line is one, or as options say."""
        lines = read_lines(path).filter(pl.col("text").is_not_null())
        chunks = [_parse(lines.slice(start, _LINES_PER_CHUNK)) for start in range(0, lines.height, _LINES_PER_CHUNK)]
        rows = pl.concat(chunks) if chunks else _parse(lines)
        blocks = (pl.col("input_tokens") + (BLOCK_TOKENS - 1)) // BLOCK_TOKENS
        covered = pl.when(pl.col("hash_ids").list.len() != blocks).then(
            pl.format("{} hash ids for {} tokens in blocks of 512", pl.col("hash_ids").list.len(), "input_tokens")
        )
        unhashed = pl.when(
            pl.col("hash_ids").is_null()
            | (pl.col("hash_ids").list.drop_nulls().list.len() != pl.col("hash_ids").list.len())
        )
        no_time = pl.when(~pl.col("timestamp").is_between(0, _MAX_MS).fill_null(value=False))
        rows = rows.with_columns(
            arrival_ns=(pl.col("timestamp").clip(0, _MAX_MS) * NS_PER_MS).round().cast(pl.Int64, strict=False),
            problem=pl.coalesce(
                "problem",
                no_time.then(pl.lit("timestamp is not a number of milliseconds from 0")),
                token_problem("input_tokens", "input_length", least=1),
                token_problem("output_tokens", "output_length", least=0),
                unhashed.then(pl.lit("hash_ids is not a list of whole numbers")),
                covered,
            ),
        )
        return settle(rows, path=path, log_format=self.name, block_tokens=BLOCK_TOKENS, epoch=False, options=options)


def _parse(lines: pl.DataFrame) -> pl.DataFrame:
    """Columns line, the four keys under planned names, problem. By columns; a chunk with a bad line goes by lines."""
    try:
        parsed = _columns("\n".join(lines["text"].to_list()))
    except pl.exceptions.PolarsError:
        parsed = None
    if parsed is not None and parsed.height == lines.height:
        return _renamed(lines, parsed, pl.lit(None, dtype=pl.String))
    checked = [_checked(text) for text in lines["text"].to_list()]
    parsed = _columns("\n".join(text for text, _ in checked))
    return _renamed(lines, parsed, pl.Series("problem", [problem for _, problem in checked], dtype=pl.String))


def _columns(text: str) -> pl.DataFrame:
    return pl.read_ndjson(io.BytesIO(text.encode()), schema=_KEYS) if text else pl.DataFrame(schema=_KEYS)


def _renamed(lines: pl.DataFrame, parsed: pl.DataFrame, problem: pl.Expr | pl.Series) -> pl.DataFrame:
    named = parsed.rename({"input_length": "input_tokens", "output_length": "output_tokens"})
    return named.with_columns(lines["line"], problem.alias("problem"))


def _checked(text: str) -> tuple[str, str | None]:
    """The line with its four keys only, and what is wrong with it; `{}` in the place of a line that is no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "{}", "not JSON, or cut off"
    if not isinstance(value, dict):
        return "{}", "not a JSON object"
    kept = {key: value[key] for key, dtype in _KEYS.items() if key in value and _fits(value[key], dtype)}
    return json.dumps(kept), None


def _fits(value: object, dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_fits(item, pl.Int64()) for item in value)
    if isinstance(value, bool):
        return False
    if dtype == pl.Float64():
        return isinstance(value, (int, float)) and abs(value) < 1e300
    return isinstance(value, int) and -(2**63) <= value < 2**63
