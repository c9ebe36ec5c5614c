"""Block-hash request logs (JSON lines of input_length, output_length, hash_ids, maybe timestamp), read by columns.

The file is read piece by piece, so that memory does not grow with it. An id stands for a block and all before it; the
last one may be partial. The size of a block is the one that fits the lengths of the first piece, 512 by custom.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from traces.agentlogs.base import MAX_TOKENS, REQUEST_COLUMNS, Batch, Head, Reading, Units
from traces.agentlogs.files import parsed
from traces.agentlogs.hashes import local_ids
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.values import name
from traces.clock import MOST_NS, NS_PER_MS
from traces.printable import utf8

_PIECE_BYTES = 1 << 21
_LONGEST_LINE = 1 << 28
_SIZES = (512, 16, 32, 64, 128, 256, 1024)
_KEYS: dict[str, pl.DataType] = {
    "timestamp": pl.Float64(),
    "input_length": pl.Int64(),
    "output_length": pl.Int64(),
    "hash_ids": pl.List(pl.Int64()),
    "session_id": pl.String(),
}


class BlockHashFormat:
    """See the module."""

    name = "block-hash"

    def fits(self, head: Head) -> bool:
        """Whether a record has lengths and block ids."""
        return any({"input_length", "output_length", "hash_ids"} <= item.keys() for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """A batch per piece of the file."""
        block = None
        reading.block_files += 1
        if reading.block_files > 1:
            reading.note("block ids are taken to be each file's own: put the parts of one log into one file")
        scope = utf8(str(head.path)) if reading.block_files > 1 else ""
        with head.path.open("rb") as log:
            for first_line, raw in _pieces(log, head, reading):
                rows = _parse(raw, first_line)
                block = block or _block_tokens(rows)
                rows = self._right(head, reading, rows, block)
                if rows.height:
                    yield _batch(head, rows, block, scope)

    def _right(self, head: Head, reading: Reading, rows: pl.DataFrame, block: int) -> pl.DataFrame:
        ids = pl.col("hash_ids").list.len()
        counts = pl.col("input_length").is_between(1, MAX_TOKENS) & pl.col("output_length").is_between(0, MAX_TOKENS)
        problem = (
            pl.when(pl.col("problem").is_not_null()).then("problem")
            .when(~counts.fill_null(value=False)).then(pl.lit("input_length and output_length are not whole numbers"))
            .when(pl.col("hash_ids").is_null() | (pl.col("hash_ids").list.drop_nulls().list.len() != ids))
            .then(pl.lit("hash_ids is not a list of whole numbers"))
            .when(ids > (pl.col("input_length") + (block - 1)) // block)
            .then(pl.format("{} hash ids for {} tokens in blocks of {}", ids, "input_length", pl.lit(block)))
        )  # fmt: skip
        rows = rows.with_columns(problem=problem)
        for line, message in rows.filter(pl.col("problem").is_not_null()).select("line", "problem").iter_rows():
            reading.bad(head.path, line, message)
        return rows.filter(pl.col("problem").is_null())


def _pieces(log: BinaryIO, head: Head, reading: Reading) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) of the file, in pieces."""
    line, rest = 1, b""
    while True:
        raw = log.read(_PIECE_BYTES)
        cut = raw.rfind(b"\n") + 1
        if raw and not cut:
            rest += raw
            if len(rest) > _LONGEST_LINE:
                reading.bad(head.path, line, "a line of more than 256 MB")
                return
            continue
        piece, rest = rest + raw[:cut], raw[cut:]
        if not raw:
            piece, rest = piece + rest, b""
        if piece:
            yield line, piece
            line += piece.count(b"\n")
        if not raw:
            return


def _parse(raw: bytes, first_line: int) -> pl.DataFrame:
    """Columns of _KEYS, line, problem. By columns; a piece with a bad line goes line by line."""
    try:
        frame = pl.read_ndjson(io.BytesIO(raw), schema=_KEYS)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is not None and frame.height == raw.rstrip(b"\n").count(b"\n") + 1:
        return frame.with_columns(
            line=pl.int_range(first_line, first_line + pl.len(), dtype=pl.Int64), problem=pl.lit(None, dtype=pl.String)
        )
    columns: dict[str, list[object]] = {key: [] for key in (*_KEYS, "line", "problem")}
    for number, text in enumerate(raw.split(b"\n"), first_line):
        if not text.strip():
            continue
        value = parsed(text)
        whole = value if isinstance(value, dict) else {}
        for key, dtype in _KEYS.items():
            columns[key].append(_kept(whole.get(key), dtype))
        columns["line"].append(number)
        columns["problem"].append(None if isinstance(value, dict) else "not a JSON object, or cut off")
    return pl.DataFrame(columns, schema={**_KEYS, "line": pl.Int64(), "problem": pl.String()})


def _kept(value: object, dtype: pl.DataType) -> object:
    if isinstance(dtype, pl.List):
        right = isinstance(value, list) and all(_kept(item, pl.Int64()) is not None for item in value)
        return value if right else None
    if isinstance(dtype, pl.String):
        return name(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(dtype, pl.Float64):
        return float(value) if abs(value) < 1e300 else None
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def _block_tokens(rows: pl.DataFrame) -> int:
    ids, tokens = pl.col("hash_ids").list.len().cast(pl.Int64), pl.col("input_length")
    known = rows.filter(ids.is_not_null() & tokens.is_between(1, MAX_TOKENS))
    for size in _SIZES:
        if known.height and known.select((ids == (tokens + (size - 1)) // size).mean()).item() > 0.5:
            return size
    return _SIZES[0]


def _batch(head: Head, rows: pl.DataFrame, block: int, scope: str) -> Batch:
    lengths = rows["hash_ids"].list.len().to_numpy().astype(np.int64)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    chain = rows["hash_ids"].explode(empty_as_null=False).to_numpy() if offsets[-1] else np.zeros(0, dtype=np.int64)
    inputs = rows["input_length"].to_numpy()
    ms = pl.col("timestamp")
    when = pl.when(ms.is_between(0, MOST_NS // NS_PER_MS)).then((ms * NS_PER_MS).round().cast(pl.Int64, strict=False))
    null = {column: pl.lit(None, dtype=dtype).alias(column) for column, dtype in REQUEST_COLUMNS.items()}
    null |= {
        "line": pl.col("line"), "session": pl.col("session_id").alias("session"), "start_ns": when.alias("start_ns"),
        "input_tokens": pl.col("input_length").alias("input_tokens"),
        "output_tokens": pl.col("output_length").alias("output_tokens"),
        "token_source": pl.lit(RECORDED).alias("token_source"),
    }  # fmt: skip
    units = Units(offsets=offsets, chain=local_ids(chain, scope), tokens=_unit_tokens(offsets, inputs, block))
    return Batch(
        path=head.path, format=BlockHashFormat.name, requests=rows.select(null.values()), units=units,
        block_tokens=block,
    )  # fmt: skip


def _unit_tokens(offsets: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64], block: int) -> npt.NDArray[np.int32]:
    """`block` each; of a prompt's last id, what is left of the prompt."""
    tokens = np.full(offsets[-1], block, dtype=np.int32)
    ends = offsets[1:][np.diff(offsets) > 0] - 1
    left = inputs - np.maximum(np.diff(offsets) - 1, 0) * block
    tokens[ends] = np.minimum(left, block)[np.diff(offsets) > 0]
    return tokens
