"""`requests.jsonl` of the load client → staging tables `requests` and `tokens`.

One line per request that has ended (`profiler/requestlog.py`), appended in one write each, so a crash costs at most a
torn last line. Such a line, any other that is no record, and a record of numbers that no request has are left out and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa

from traces.clock import MOST_NS
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.staging import LOG_TABLES

_MARK = b'{"stepscope_request":'
RECORD_VERSION = 1
BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20  # a record of a million tokens has 20 MB; a longer "line" is no record of ours

_POLARS: dict[pa.DataType, pl.DataType] = {pa.int64(): pl.Int64(), pa.string(): pl.String()}
# What a line holds: the columns of staging `requests` under the same names, and the times of the tokens.
_LINE_SCHEMA: dict[str, pl.DataType] = {
    "stepscope_request": pl.Int64(),
    **{field.name: _POLARS[field.type] for field in LOG_TABLES["requests"] if field.name != "src"},
    "token_source": pl.String(),
    "token_ns": pl.List(pl.Int64()),
}
# What no request has: its sums and differences would leave 64 bits. Times are of the epoch, and the second limits spans, too.
_MOST_TOKENS = 2**31
_COUNTS = ("turn", "prompt_tokens", "cached_tokens", "output_tokens")
_TIMES = tuple(name for name, dtype in _LINE_SCHEMA.items() if name.endswith("_ns") and dtype == pl.Int64())


class RequestsReader:
    """Columns straight from the JSON lines; lines are looked at one by one only in blocks that are damaged.

    `block_bytes` bounds what is held at a time: memory does not grow with the file.
    """

    name = "requests"

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the first line is a request record; an empty `requests*.jsonl` counts, as no request had ended."""
        if not head.strip():
            return path.name.startswith("requests") and path.suffix == ".jsonl"
        return head.lstrip().startswith(_MARK)

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Append `requests` (one row per line) and `tokens` (one row per streamed token, i from 0).

        Tokens of a server that gives no token ids are chunks with text: `meta['chunk_timed_requests']` counts such
        requests, whose rows in `tokens` may be fewer than their output_tokens. Raises UnreadableInput where the file
        cannot be opened, or has content of which no line is a record.
        """
        report = ReadReport(path=path, format=self.name, kept={"requests": 0, "tokens": 0})
        report.meta = {"chunk_timed_requests": 0}
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                for block, dropped in _blocks(file, digest, self._block_bytes):
                    _drop(report, "no record", dropped)
                    self._take(block, src, sink, report)
                    if options.progress is not None:
                        options.progress(file.tell(), report.events)
                report.bytes_read = file.tell()
        except OSError as error:
            raise UnreadableInput(
                f"cannot read {path}: {error.strerror}", hint="give a file of request records"
            ) from error
        report.sha256 = digest.hexdigest()
        if report.dropped and not report.kept["requests"]:
            raise UnreadableInput(f"no line of {path} is a request record", hint="give the requests.jsonl of a run")
        return report

    def _take(self, block: bytes, src: int, sink: Sink, report: ReadReport) -> None:
        frame = _plausible(_parse(block, report), report)
        report.meta["chunk_timed_requests"] += frame.filter(pl.col("token_source") == "chunks").height
        requests = frame.select(field.name for field in LOG_TABLES["requests"] if field.name != "src")
        _append(sink, "requests", requests, src, report)
        _append(sink, "tokens", _tokens(frame), src, report)
        report.events = report.kept["requests"] + sum(report.dropped.values())


def _append(sink: Sink, table: str, frame: pl.DataFrame, src: int, report: ReadReport) -> None:
    if frame.is_empty():
        return
    columns = frame.select(pl.lit(src, dtype=pl.UInt32).alias("src"), pl.all())
    sink.append(table, columns.to_arrow().cast(LOG_TABLES[table]))
    report.kept[table] += frame.height


def _drop(report: ReadReport, reason: str, count: int) -> None:
    if count:
        report.dropped[reason] = report.dropped.get(reason, 0) + count


def _blocks(file: BinaryIO, digest: hashlib._Hash, size: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, the last one with what follows the last newline; and how many lines before each were
    too long to be a record. Bytes pass through `digest` as they come."""
    rest, overlong = b"", False
    while data := file.read(size):
        digest.update(data)
        dropped = 0
        if overlong:  # inside a line that was given up
            end = data.find(b"\n") + 1
            if not end:
                continue
            data, overlong, dropped = data[end:], False, 1
        rest += data
        cut = rest.rfind(b"\n") + 1
        block, rest = rest[:cut], rest[cut:]
        if len(rest) > MAX_LINE_BYTES:
            rest, overlong = b"", True
        if block or dropped:
            yield block, dropped
    if rest or overlong:
        yield rest, int(overlong)


def _tokens(frame: pl.DataFrame) -> pl.DataFrame:
    times = frame.select("client_request_id", pl.col("token_ns").alias("ts_ns")).filter(pl.col("ts_ns").list.len() > 0)
    numbered = times.with_columns(i=pl.int_ranges(pl.col("ts_ns").list.len(), dtype=pl.Int64))
    return numbered.explode("i", "ts_ns").select("client_request_id", "i", "ts_ns")


def _parse(raw: bytes, report: ReadReport) -> pl.DataFrame:
    body, _, tail = raw.rpartition(b"\n")
    if tail.strip():
        if (whole := _record(tail)) is not None:
            body = body + b"\n" + whole
        else:
            report.truncated = f"the last line is cut off after {len(tail)} bytes"
            _drop(report, "torn line", 1)
    try:
        frame = _read(body)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is None or not _sound(frame):
        lines = [line for line in body.split(b"\n") if line.strip()]
        records = [record for line in lines if (record := _record(line)) is not None]
        _drop(report, "no record", len(lines) - len(records))
        frame = _read(b"\n".join(records))
    return frame


def _plausible(frame: pl.DataFrame, report: ReadReport) -> pl.DataFrame:
    """The records whose numbers can be; the others are counted in the report."""
    tokens, times = pl.col("token_ns").list, pl.col(*_TIMES)
    good = frame.filter(
        pl.all_horizontal(pl.col(*_COUNTS).fill_null(0).is_between(0, _MOST_TOKENS)),
        pl.all_horizontal(times.fill_null(0).is_between(0, MOST_NS)),
        tokens.min().fill_null(0) >= 0,
        tokens.max().fill_null(0) <= MOST_NS,
    )
    _drop(report, "impossible number", frame.height - good.height)
    return good


def _read(body: bytes) -> pl.DataFrame:
    if not body.strip():
        return pl.DataFrame(schema=_LINE_SCHEMA)
    return pl.read_ndjson(body, schema=_LINE_SCHEMA)


def _sound(frame: pl.DataFrame) -> bool:
    version = (pl.col("stepscope_request") == RECORD_VERSION).fill_null(value=False)
    named = pl.col("client_request_id").is_not_null() & pl.col("status").is_not_null()
    times = pl.col("token_ns")
    timed = times.is_null() | (times.list.drop_nulls().list.len() == times.list.len())
    return bool(frame.select((version & named & timed).all()).item())


def _record(line: bytes) -> bytes | None:
    """The line, rewritten with the keys of the schema only; None where it is torn or not of the schema's types."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("stepscope_request") != RECORD_VERSION:
        return None
    if value.get("client_request_id") is None or value.get("status") is None:
        return None
    known = {key: value.get(key) for key in _LINE_SCHEMA}
    if not all(_fits(known[key], dtype) for key, dtype in _LINE_SCHEMA.items()):
        return None
    try:
        return json.dumps(known, allow_nan=False).encode()
    except ValueError:  # NaN in a column of text, which Python alone reads
        return None


def _fits(value: object, dtype: pl.DataType) -> bool:
    if value is None:
        return True
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(item is not None and _fits(item, pl.Int64()) for item in value)
    if dtype == pl.Int64():
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return True  # a column of text takes any value as its JSON text, as the columnar path does
