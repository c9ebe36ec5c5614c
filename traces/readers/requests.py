"""`requests.jsonl` of the load client → staging tables `requests` and `tokens`.

One line per request that has ended (`profiler/requestlog.py`), appended in one write each, so a crash costs at most a
torn last line. Such a line, and any other that is no record, is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pyarrow as pa

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.staging import LOG_TABLES

_MARK = b'{"stepscope_request":'
RECORD_VERSION = 1

_POLARS: dict[pa.DataType, pl.DataType] = {pa.int64(): pl.Int64(), pa.string(): pl.String()}
# What a line holds: the columns of staging `requests` under the same names, and the times of the tokens.
_LINE_SCHEMA: dict[str, pl.DataType] = {
    "stepscope_request": pl.Int64(),
    **{field.name: _POLARS[field.type] for field in LOG_TABLES["requests"] if field.name != "src"},
    "token_source": pl.String(),
    "token_ns": pl.List(pl.Int64()),
}


class RequestsReader:
    """Columns straight from the JSON lines; lines are looked at one by one only where the file is damaged."""

    name = "requests"

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
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UnreadableInput(
                f"cannot read {path}: {error.strerror}", hint="give a file of request records"
            ) from error
        report = ReadReport(path=path, format=self.name, sha256=hashlib.sha256(raw).hexdigest(), bytes_read=len(raw))
        frame = _parse(raw, report)
        if frame.is_empty() and raw.strip():
            raise UnreadableInput(f"no line of {path} is a request record", hint="give the requests.jsonl of a run")
        report.events = frame.height + sum(report.dropped.values())
        report.meta = {"chunk_timed_requests": frame.filter(pl.col("token_source") == "chunks").height}
        requests = frame.select(field.name for field in LOG_TABLES["requests"] if field.name != "src")
        self._append(sink, "requests", requests, src, report)
        self._append(sink, "tokens", _tokens(frame), src, report)
        if options.progress is not None:
            options.progress(report.bytes_read, report.events)
        return report

    def _append(self, sink: Sink, table: str, frame: pl.DataFrame, src: int, report: ReadReport) -> None:
        columns = frame.select(pl.lit(src, dtype=pl.UInt32).alias("src"), pl.all())
        sink.append(table, columns.to_arrow().cast(LOG_TABLES[table]))
        report.kept[table] = frame.height


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
            report.dropped["torn line"] = 1
    try:
        frame = _read(body)
    except pl.exceptions.PolarsError:
        frame = None
    if frame is None or not _sound(frame):
        lines = [line for line in body.split(b"\n") if line.strip()]
        records = [record for line in lines if (record := _record(line)) is not None]
        if len(records) < len(lines):
            report.dropped["no record"] = len(lines) - len(records)
        frame = _read(b"\n".join(records))
    return frame


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
    return json.dumps(known).encode()


def _fits(value: object, dtype: pl.DataType) -> bool:
    if value is None:
        return True
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(item is not None and _fits(item, pl.Int64()) for item in value)
    if dtype == pl.Int64():
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return True  # a column of text takes any value as its JSON text, as the columnar path does
