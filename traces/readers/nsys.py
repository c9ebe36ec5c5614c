"""Nsight Systems: SQLite exports, and reports that have to be exported first.

`ts` is as in the file; `ReadReport.base_ns` carries the session's start in ns since the epoch, where it is known.
Only the tables named in nsys_layout are read. The environment dump (TARGET_INFO_SYSTEM_ENV) and the command lines are
not among them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from traces.errors import NothingToAnalyze, UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.nsys_events import Reading
from traces.readers.nsys_layout import EVENT_TABLES, STRINGS, Layout, inspect

_MAGIC = b"SQLite format 3\x00"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_SUMMARY_HEAD = re.compile(rb'\A(?:\xef\xbb\xbf)?"?Time ?\(%\)"?,"?Total Time')
_EXPORT_SECONDS = 3600


class NsysReader:
    """Reads `.sqlite` exports of any version; exports a `.nsys-rep` or `.qdrep` where `nsys` is at hand."""

    name = "nsys"

    def sniff(self, path: Path, head: bytes) -> bool:
        """SQLite by its signature, reports by their suffix, and the summary tables of `nsys stats` (to refuse them)."""
        return (
            head.startswith(_MAGIC)
            or path.suffix in _REPORT_SUFFIXES
            or (path.suffix in (".sqlite", ".sqlite3") and head.lstrip()[:1] not in (b"{", b"["))
            or _SUMMARY_HEAD.match(head) is not None
        )

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Append the events of `path`. Raises UnreadableInput, or NothingToAnalyze for an export without events."""
        report = ReadReport(path=path, format=self.name, bytes_read=path.stat().st_size)
        with path.open("rb") as source:
            head = source.read(256)
            source.seek(0)
            _refuse_what_is_no_timeline(path, head)
            report.sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        if head.startswith(_MAGIC):
            _read_database(path, src, sink, options, report)
            return report
        with tempfile.TemporaryDirectory(prefix="stepscope-nsys-") as folder:
            exported = _export(path, Path(folder))
            _read_database(exported, src, sink, options, report)
        return report


def export_command(path: Path, target: Path) -> list[str]:
    """The command that exports a report."""
    return ["nsys", "export", "--type", "sqlite", "--output", str(target), str(path)]


def _refuse_what_is_no_timeline(path: Path, head: bytes) -> None:
    export = "nsys export --type sqlite --output REPORT.sqlite REPORT.nsys-rep"
    if not head:
        raise UnreadableInput(f"{path} is empty", hint=f"export the report again: {export}")
    if _SUMMARY_HEAD.match(head):
        raise UnreadableInput(
            f"{path} is a summary of kernels: it has no times, so no timeline can be made of it",
            hint=f"export the timeline of the same report: {export}",
        )
    if not head.startswith(_MAGIC) and path.suffix not in _REPORT_SUFFIXES:
        raise UnreadableInput(f"{path} is not an SQLite database", hint=f"export the report again: {export}")


def _export(path: Path, folder: Path) -> Path:
    target = folder / "report.sqlite"
    command = export_command(path.resolve(), target)
    program = shutil.which("nsys")
    shown = " ".join(export_command(path, path.with_suffix(".sqlite")))
    if program is None:
        raise UnreadableInput(
            f"{path} has to be exported first, and nsys is not on the PATH",
            hint=f"where nsys is installed, run: {shown}",
        )
    try:
        done = subprocess.run(
            [program, *command[1:]], check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_EXPORT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreadableInput(f"nsys could not export {path}: {error}", hint=f"run it yourself: {shown}") from error
    if done.returncode != 0 or not target.exists():
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else f"exit code {done.returncode}"
        raise UnreadableInput(f"nsys could not export {path}: {reason}", hint=f"run it yourself: {shown}")
    return target


def _read_database(path: Path, src: int, sink: Sink, options: ReadOptions, report: ReadReport) -> None:
    # immutable: neither locks nor journals are touched, so a locked database and a read-only folder are no obstacle
    address = path.resolve().as_uri() + "?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA temp_store = FILE")
            layout = inspect(connection)
            _refuse_other_databases(path, layout)
            _read_facts(connection, layout, report)
            Reading(connection, src, sink, options, report).run(layout)
    except sqlite3.DatabaseError as error:
        raise UnreadableInput(
            f"{path} is damaged: {error}", hint="export the report again with nsys export --type sqlite"
        ) from error
    _mention_journal(path, report)


def _refuse_other_databases(path: Path, layout: Layout) -> None:
    if any(layout.has(table, "start") for table in EVENT_TABLES):
        return
    if STRINGS in layout.tables or "META_DATA_EXPORT" in layout.tables:
        raise NothingToAnalyze(
            f"{path} holds no CUDA activities and no NVTX ranges",
            hint="record with nsys profile --trace=cuda,nvtx --cuda-graph-trace=node",
        )
    raise UnreadableInput(
        f"{path} is an SQLite database, but no export of Nsight Systems",
        hint="make one: nsys export --type sqlite --output REPORT.sqlite REPORT.nsys-rep",
    )


def _mention_journal(path: Path, report: ReadReport) -> None:
    """Pages in a journal beside the file are not read: it is opened immutable, and the writer may still be at it."""
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size > 0:
            note = f"{beside.name} holds changes that were not merged (was the export interrupted?)"
            report.truncated = note if report.truncated is None else f"{report.truncated}; {note}"


def _read_facts(connection: sqlite3.Connection, layout: Layout, report: ReadReport) -> None:
    report.base_ns = layout.base_ns
    report.meta["cupti_tables"] = sorted(name for name in layout.tables if name.startswith("CUPTI_"))
    if layout.has("META_DATA_EXPORT", "name", "value"):
        for name, key in (("EXPORT_PRODUCT_VERSION", "nsys_version"), ("EXPORT_SCHEMA_VERSION", "nsys_schema")):
            row = connection.execute("SELECT value FROM META_DATA_EXPORT WHERE name = ?", (name,)).fetchone()
            if row is not None:
                report.meta[key] = str(row[0])
    devices = _device_properties(connection, layout)
    if devices:
        report.meta["deviceProperties"] = devices


def _device_properties(connection: sqlite3.Connection, layout: Layout) -> list[dict[str, Any]]:
    """GPUs, with the keys that Kineto gives them. Bytes, counts; memoryBandwidth in bytes/s."""
    columns = {
        "id": "id", "name": "name", "totalMemory": "totalGlobalMem", "computeMajor": "computeMajor",
        "computeMinor": "computeMinor", "smCount": "numSms", "threadsPerWarp": "warpSize",
        "maxThreadsPerBlock": "maxThreadsPerBlock", "maxRegistersPerBlock": "regsPerBlock",
        "maxShmemPerBlock": "sharedMemPerBlock", "memoryBandwidth": "memoryBandwidth",
    }  # fmt: skip
    known = [column for column in columns if layout.has("TARGET_INFO_GPU", column)]
    if "id" not in known:
        return []
    rows = connection.execute(f"SELECT {', '.join(known)} FROM TARGET_INFO_GPU LIMIT 4096").fetchall()
    return [
        {columns[column]: value for column, value in zip(known, row, strict=True) if value is not None} for row in rows
    ]
