"""The step ledger: JSON lines that the hook writes inside an engine core, `ledger/<pid>.jsonl` of a run directory.

Lines are parsed in blocks, in columns; a result that comes in a later block than its step is joined there. A torn line
(the process was killed, the disk was full) is counted and skipped, whatever surrounds it is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa

from traces.clock import MOST_NS
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.staging import LOG_TABLES

BLOCK_BYTES = 16 << 20
_FIRST_KEY = re.compile(rb'\s*\{"kind":"(header|step|result|request|aborted|mark)"')
_HEADER_LINE = re.compile(rb'^\{"kind":"header".*\}$', re.MULTILINE)

_INT, _INTS, _TEXT, _TEXTS = pl.Int64(), pl.List(pl.Int64()), pl.String(), pl.List(pl.String())
_FLAGS = pl.List(pl.Boolean())
_SCHEMA: dict[str, pl.DataType] = {
    "kind": _TEXT, "ts": _INT, "seq": _INT, "t0": _INT, "t1": _INT, "m0": _INT, "r0": _INT, "r1": _INT, "total": _INT,
    "running": _INT, "waiting": _INT, "kv": pl.Float64(), "ids": _TEXTS, "new": _INTS, "computed": _INTS,
    "prompts": _INTS, "out": _INTS, "spec": _INTS, "first": _FLAGS, "resumed": _FLAGS, "acc": _INTS, "done": _TEXTS,
    "reason": _TEXTS, "done_out": _INTS, "event": _TEXT, "id": _TEXT, "session": _TEXT, "prompt": _INT,
    "arrival": _INT, "keys": pl.List(pl.UInt64()), "mark": _TEXT, "value": _INT, "text": _TEXT,
}  # fmt: skip
_MOST_TOKENS = 2**31  # of one record; a count beyond is a damaged one, and its products leave 64 bits
_COUNTS = ("new", "computed", "prompts", "out", "spec", "acc", "done_out")
_PLAUSIBLE = pl.all_horizontal(
    *(pl.col(name).list.max().fill_null(0) < _MOST_TOKENS for name in _COUNTS),
    *(pl.col(name).list.min().fill_null(0) > -_MOST_TOKENS for name in _COUNTS),
    *(pl.col(name).fill_null(0).is_between(-_MOST_TOKENS, _MOST_TOKENS) for name in ("total", "prompt")),
    (pl.col("kind") != "request") | pl.col("id").is_not_null(),
    *(
        (pl.col(name).list.len() == pl.col(name).list.drop_nulls().list.len()).fill_null(value=True)
        for name in ("ids", "done")
    ),
)
_STEP_LISTS = ("ids", "new", "computed", "prompts", "out", "spec", "first", "resumed")


class ScheduleReader:
    """See the module; `profiler/hooks/plugin/stepscope_hook/steps.py` describes the records."""

    name = "schedule"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the content decides
        """Whether the first line is a ledger record."""
        return _FIRST_KEY.match(head) is not None

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Append ledger_steps, ledger_rows, ledger_requests and ledger_marks.

        Raises UnreadableInput where the file cannot be opened or holds no record at all.
        """
        report = ReadReport(path=path, format=self.name)
        digest = hashlib.sha256()
        reading = _Reading(src, sink, report, pid=int(path.stem) if path.stem.isdigit() else 0)
        try:
            with path.open("rb") as file:
                for block in _blocks(file):
                    digest.update(block)
                    report.bytes_read += len(block)
                    reading.take(block)
                    if options.progress is not None:
                        options.progress(report.bytes_read, report.events)
        except OSError as error:
            raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a ledger of a run") from error
        reading.end()
        report.sha256 = digest.hexdigest()
        if report.events == 0:
            raise UnreadableInput(f"{path} holds no complete ledger record", hint="was the engine killed at its start?")
        return report


class _Reading:
    """State across the blocks of one file: steps whose result has not come yet."""

    def __init__(self, src: int, sink: Sink, report: ReadReport, *, pid: int) -> None:
        self._src, self._sink, self._report, self._pid = src, sink, report, pid
        self._open = pl.DataFrame(schema=_SCHEMA)

    def take(self, block: bytes) -> None:
        """Parse a block of lines; only the last block of a file may end inside one."""
        for line in _HEADER_LINE.findall(block):
            self._header(line)
        frames = list(self._parse(block, whole=block.endswith(b"\n")))
        if not frames:
            return
        frame = pl.concat(frames)
        known = frame.filter(pl.col("kind").is_not_null() & _PLAUSIBLE)
        if known.height < frame.height:
            self._drop("not a record", frame.height - known.height)
        self._report.events += known.height
        self._steps(known)
        self._requests(known)
        self._marks(known)

    def end(self) -> None:
        """Steps that never had a result."""
        self._write_steps(self._open, pl.DataFrame(schema=_SCHEMA))

    def _parse(self, block: bytes, *, whole: bool) -> Iterator[pl.DataFrame]:
        """Frames of all lines that parse; a failing piece is halved until the torn line is alone."""
        if not block.strip():
            return
        try:
            yield pl.read_ndjson(block, schema=_SCHEMA, ignore_errors=True)
            return
        except pl.exceptions.PolarsError:
            pass
        middle = block.find(b"\n", len(block) // 2) + 1
        if middle in (0, len(block)):
            middle = block.rfind(b"\n", 0, max(0, len(block) // 2)) + 1
        if middle in (0, len(block)):
            self._drop("torn line", 1)
            if not whole:
                self._report.truncated = f"the last line is cut off after {len(block)} bytes"
            return
        yield from self._parse(block[:middle], whole=True)
        yield from self._parse(block[middle:], whole=whole)

    def _steps(self, frame: pl.DataFrame) -> None:
        steps = pl.concat([self._open, frame.filter((pl.col("kind") == "step") & pl.col("seq").is_not_null())])
        results = frame.filter((pl.col("kind") == "result") & pl.col("seq").is_not_null())
        done = steps.join(results, on="seq", how="semi")
        self._open = steps.join(results, on="seq", how="anti")
        self._write_steps(done, results)

    def _write_steps(self, steps: pl.DataFrame, results: pl.DataFrame) -> None:
        joined = steps.join(
            results.select("seq", result_start_ns="r0", result_end_ns="r1"), on="seq", how="left", maintain_order="left"
        )
        self._append(
            "ledger_steps",
            joined.select(
                "seq", "result_start_ns", "result_end_ns", "running", "waiting", sched_start_ns="t0", sched_end_ns="t1",
                mono_start_ns="m0", total_tokens="total", kv_usage="kv",
            ),
        )  # fmt: skip
        rows = _exploded(steps, _STEP_LISTS, "seq", "t0")
        accepted = _exploded(results, ("ids", "acc"), "seq")
        rows = rows.join(accepted, on=["seq", "ids"], how="left", maintain_order="left")
        # A result without output for a row is 0 accepted tokens; no result at all is unknown.
        has_result = pl.col("seq").is_in(results.get_column("seq").to_list())
        self._append(
            "ledger_rows",
            rows.select(
                "seq", engine_request_id="ids", new_tokens="new", computed_before="computed", prompt_tokens="prompts",
                output_before="out", spec_tokens="spec", is_new="first", is_resumed="resumed",
                accepted_tokens=pl.when(has_result).then(pl.col("acc").fill_null(0)),
            ),
        )  # fmt: skip
        first = rows.filter(pl.col("first"))
        self._append(
            "ledger_requests",
            first.select(
                engine_request_id="ids", event=pl.lit("scheduled"), ts_ns="t0", prompt_tokens="prompts",
                cached_tokens="computed",
            ),
        )  # fmt: skip

    def _requests(self, frame: pl.DataFrame) -> None:
        events = frame.filter(pl.col("kind") == "request")
        self._append(
            "ledger_requests",
            events.select(
                "event", engine_request_id="id", ts_ns="ts", session_id="session", prompt_tokens="prompt",
                arrival_ns="arrival",
            ),
        )  # fmt: skip
        keyed = events.filter(pl.col("keys").list.len() > 0)
        self._append("ledger_prompts", keyed.select(engine_request_id="id", prompt_tokens="prompt", block_keys="keys"))
        done = _exploded(frame.filter(pl.col("kind") == "result"), ("done", "reason", "done_out"), "r1")
        gone = _exploded(frame.filter(pl.col("kind") == "aborted"), ("ids", "out"), "ts")
        finished = pl.concat(
            [
                done.select(engine_request_id="done", reason="reason", output_tokens="done_out", ts_ns="r1"),
                gone.select(engine_request_id="ids", reason=pl.lit("abort"), output_tokens="out", ts_ns="ts"),
            ]
        )
        known = pl.when(pl.col("output_tokens") >= 0).then(pl.col("output_tokens"))
        self._append("ledger_requests", finished.with_columns(event=pl.lit("finished"), output_tokens=known))

    def _marks(self, frame: pl.DataFrame) -> None:
        marks = frame.filter(pl.col("kind") == "mark")
        self._append("ledger_marks", marks.select("value", "text", kind="mark", ts_ns="ts"))

    def _header(self, line: bytes) -> None:
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            return  # torn; counted as such by the parser
        pid, ts_ns = facts.get("pid"), facts.get("ts")
        if isinstance(pid, int) and 0 <= pid < 2**63:
            self._pid = pid
        self._report.meta.setdefault("header", facts)
        mark = {
            "kind": ["header"],
            "ts_ns": [ts_ns if isinstance(ts_ns, int) and abs(ts_ns) <= MOST_NS else None],
            "text": [line.decode(errors="replace")],
        }
        self._append("ledger_marks", pl.DataFrame(mark, schema={"kind": _TEXT, "ts_ns": _INT, "text": _TEXT}))

    def _append(self, table: str, frame: pl.DataFrame) -> None:
        """Complete `frame` to the staging table: src, pid, and NULL for columns it lacks."""
        if frame.is_empty():
            return
        schema = LOG_TABLES[table]
        data = frame.to_arrow()
        fixed = {"src": self._src, "pid": self._pid}
        columns = [
            pa.array([fixed[field.name]] * data.num_rows, field.type)
            if field.name in fixed
            else data.column(field.name).cast(field.type)
            if field.name in data.column_names
            else pa.nulls(data.num_rows, field.type)
            for field in schema
        ]
        self._sink.append(table, pa.Table.from_arrays(columns, schema=schema))
        self._report.kept[table] = self._report.kept.get(table, 0) + data.num_rows

    def _drop(self, reason: str, count: int) -> None:
        self._report.dropped[reason] = self._report.dropped.get(reason, 0) + count


def _exploded(frame: pl.DataFrame, lists: tuple[str, ...], *scalars: str) -> pl.DataFrame:
    """One row per element of `lists`; records whose lists disagree in length have none."""
    lengths = [pl.col(name).list.len() for name in lists]
    agree = pl.all_horizontal([length == lengths[0] for length in lengths]) & (lengths[0] > 0)
    return frame.filter(agree.fill_null(value=False)).select(*scalars, *lists).explode(*lists)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines; what follows the last newline comes at the end."""
    rest = b""
    while data := file.read(BLOCK_BYTES):
        data = rest + data
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if cut:
            yield data[:cut]
    if rest:
        yield rest
