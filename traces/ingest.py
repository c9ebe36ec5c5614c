"""From files or a run directory to a run in a database: read, link, check, rename. All or nothing."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from traces import health, identity, ranks
from traces.clock import MOST_NS
from traces.errors import NothingToAnalyze, UnreadableInput, UsageProblem
from traces.inputs import InputFile, expand_inputs
from traces.link import LinkContext, create_stage, link
from traces.manifest import MANIFEST_NAME, RunManifest
from traces.printable import utf8
from traces.readers.base import ReadOptions, ReadReport
from traces.rows import first_row
from traces.sink import StageSink
from traces.sniff import reader_named
from traces.store import named_sql, writing

# DuckDB's share of memory; a reader's own buffers come on top of the first, linking has none. More makes linking faster
# (320 MB: a tenth), but memory that stays flat is the promise.
READ_MEMORY, LINK_MEMORY = "128MB", "160MB"
Finish = Callable[[duckdb.DuckDBPyConnection, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """What a person can choose about an ingest."""

    name: str | None = None
    stacks: bool = False
    utc_offset_ns: int | None = None  # of local times in sensor logs
    sensor_interval_ns: int | None = None  # of sensor logs without times
    progress: Callable[[str, int, int, int], None] | None = None  # (file, bytes read, bytes in all, events)
    finish: Finish | None = None  # analysis of the linked run, before the database appears


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What came of an ingest. `run_id` is that of the existing run where every file had been ingested before."""

    target: Path
    run_id: str
    files: list[ReadReport] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (file, why)
    already: bool = False
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Read:
    """One file read: where it is, and what the reader said."""

    src: int
    item: InputFile
    report: ReadReport


def ingest(paths: Sequence[str], target: Path, options: IngestOptions) -> IngestReport:
    """Make one run in `target` from `paths`. An existing database keeps its runs; a failure leaves it untouched.

    Raises UnreadableInput where nothing can be read, NothingToAnalyze where what was read holds no activity and no
    step, UsageProblem where `target` cannot be written.
    """
    began = time.monotonic()
    files = expand_inputs(paths)
    _refuse_an_input(target, files)
    manifest = _manifest(files)
    report = IngestReport(target=target, run_id="")
    wanted = _choose(files, report)
    with _spill(target) as spill, writing(target) as con, _stage(con, target, spill):
        with closing(StageSink(con)) as sink:
            reads = _read_all(con, sink, wanted, options, report)
        known = identity.already_ingested(con, [read.report.sha256 for read in reads])
        if known is not None:
            report.run_id, report.already = known, True
            raise _AlreadyThere(report)
        _leave_out_absurd_times(con, reads)
        _check_content(con, reads)
        run_id = manifest.run_id if manifest else f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        report.run_id = identity.unique_run_id(con, run_id)
        con.execute(f"SET memory_limit = '{LINK_MEMORY}'")
        _fill_sources(con, reads)
        ranks.arrange(con, report.run_id)
        link(con, _context(report.run_id, manifest))
        identity.describe_run(
            con, report.run_id, manifest, utf8(options.name or (manifest.name if manifest else _name_of(paths)))
        )
        health.check(con, report.run_id)
        if options.finish is not None:
            options.finish(con, report.run_id)
    report.seconds = time.monotonic() - began
    return report


def _refuse_an_input(target: Path, files: Sequence[InputFile]) -> None:
    """Raises UsageProblem where the database would replace what it is made from, by whatever name."""
    for item in files:
        if item.problem is None and _same_file(target, item.path):
            raise UsageProblem(
                f"{target} is one of the files to read: nothing was written",
                hint="give another --out, which ends in .duckdb",
            )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one is not there, or cannot be
        return False


class _AlreadyThere(Exception):  # control flow: leaves the `writing` block without replacing the database
    def __init__(self, report: IngestReport) -> None:
        super().__init__()
        self.report = report


def ingest_once(paths: Sequence[str], target: Path, options: IngestOptions) -> IngestReport:
    """Like `ingest`; files that the database already holds as a run are recognised by content and change nothing."""
    try:
        return ingest(paths, target, options)
    except _AlreadyThere as found:
        return found.report


@contextmanager
def _spill(target: Path) -> Iterator[Path]:
    """Where DuckDB may put what does not fit into memory; emptied once the database is closed."""
    spill = target.parent / f".{target.name}.spill-{secrets.token_hex(4)}"
    try:
        yield spill
    finally:
        with suppress(OSError):  # where none could be made, what kept it from that has been said
            for item in spill.iterdir():
                item.unlink(missing_ok=True)
            spill.rmdir()


@contextmanager
def _stage(con: duckdb.DuckDBPyConnection, target: Path, spill: Path) -> Iterator[None]:
    """Attach a scratch database beside the target, with the staging tables; it vanishes afterwards."""
    scratch = target.with_name(f".{target.name}.stage-{secrets.token_hex(4)}")
    quoted = [str(path).replace("'", "''") for path in (scratch, spill)]
    try:
        con.execute(f"SET memory_limit = '{READ_MEMORY}'")
        con.execute(f"SET temp_directory = '{quoted[1]}'")
        con.execute(f"ATTACH '{quoted[0]}' AS stage (RECOVERY_MODE NO_WAL_WRITES)")  # nobody will recover it
        con.execute("PRAGMA disable_checkpoint_on_shutdown")  # nor read it once it is detached
        create_stage(con)
        yield
        con.execute("DETACH stage")
    finally:
        for leftover in (scratch, scratch.with_name(scratch.name + ".wal")):
            leftover.unlink(missing_ok=True)


def _manifest(files: Sequence[InputFile]) -> RunManifest | None:
    found = [item.path for item in files if item.role == "manifest"]
    return RunManifest.read(found[0].parent) if found and found[0].name == MANIFEST_NAME else None


def _choose(files: Sequence[InputFile], report: IngestReport) -> list[InputFile]:
    """The files to read; the others go to `report.skipped` with the reason."""
    wanted: list[InputFile] = []
    has_run = any(item.role in ("trace", "ledger", "requests", "telemetry") and item.problem is None for item in files)
    for item in files:
        if item.problem is not None:
            report.skipped.append((item.path.name, item.problem))
        elif item.role == "capture":
            report.skipped.append((item.path.name, "is a graph-capture trace, not a run"))
        elif item.role == "frontend":
            report.skipped.append((item.path.name, "is the front end's trace: it holds no device work"))
        elif item.reader is not None:
            wanted.append(item)
    if not wanted or not has_run:
        reasons = "; ".join(f"{name} {why}" for name, why in report.skipped[:5])
        raise NothingToAnalyze(
            f"no recording of a run: {reasons or 'nothing readable'}",
            hint="give the trace of the engine's worker (vLLM: rank*.pt.trace.json.gz, SGLang: *-TP-*.trace.json.gz)",
        )
    return wanted


def _read_all(
    con: duckdb.DuckDBPyConnection,
    sink: StageSink,
    files: Sequence[InputFile],
    options: IngestOptions,
    report: IngestReport,
) -> list[_Read]:
    total = sum(item.bytes for item in files)
    reads: list[_Read] = []
    done, events = 0, 0
    seen: dict[str, str] = {}
    failure: UnreadableInput | None = None
    for src, item in enumerate(files):
        try:
            reader = reader_named(item.reader or "")
            read_options = ReadOptions(
                stacks=options.stacks, utc_offset_ns=options.utc_offset_ns, sensor_interval_ns=options.sensor_interval_ns,
                progress=_progress(options, item, done, total, events),
            )  # fmt: skip
            result = reader.read(item.path, src, sink, read_options)
        except UnreadableInput as error:
            failure = error
            report.skipped.append((item.path.name, error.message))
            _forget(con, src)
            continue
        done, events = done + item.bytes, events + result.events
        if result.sha256 is not None and result.sha256 in seen:
            report.skipped.append((item.path.name, f"has the same content as {seen[result.sha256]}"))
            _forget(con, src)
            continue
        seen[result.sha256 or f"#{src}"] = item.path.name
        reads.append(_Read(src=src, item=item, report=result))
        report.files.append(result)
    if not reads and failure is not None:
        raise failure
    return reads


def _progress(
    options: IngestOptions, item: InputFile, done: int, total: int, events: int
) -> Callable[[int, int], None] | None:
    notify = options.progress
    if notify is None:
        return None
    return lambda read, seen: notify(item.path.name, done + read, total, events + seen)


def _forget(con: duckdb.DuckDBPyConnection, src: int) -> None:
    for table in ("events", "strings", *_log_tables()):
        con.execute(f"DELETE FROM stage.{table} WHERE src = ?", [src])


def _log_tables() -> tuple[str, ...]:
    from traces.readers.staging import LOG_TABLES

    return tuple(LOG_TABLES)


def _leave_out_absurd_times(con: duckdb.DuckDBPyConnection, reads: Sequence[_Read]) -> None:
    for read in reads:
        if abs(read.report.base_ns) > MOST_NS:  # the events still have their order and distances
            read.report.base_ns = 0
        limits = {"src": read.src, "base_ns": read.report.base_ns, "most_ns": MOST_NS}
        count = len(con.execute(named_sql("absurd_times"), limits).fetchall())
        if count:
            read.report.events -= count
            read.report.dropped["absurd_time"] = count


def _check_content(con: duckdb.DuckDBPyConnection, reads: Sequence[_Read]) -> None:
    row = first_row(
        con.execute(
            "SELECT (SELECT count(*) FROM stage.events) + (SELECT count(*) FROM stage.ledger_steps) "
            "+ (SELECT count(*) FROM stage.requests) + (SELECT count(*) FROM stage.telemetry)"
        )
    )
    if row and row[0]:
        return
    names = ", ".join(read.item.path.name for read in reads[:5])
    raise NothingToAnalyze(
        f"{names}: readable, but without a single usable event",
        hint="was the profiler stopped before the engine ran a step? record again with requests in flight",
    )


def _fill_sources(con: duckdb.DuckDBPyConnection, reads: Sequence[_Read]) -> None:
    rows: list[list[Any]] = []
    for read in reads:
        report = read.report
        rank = report.rank if report.rank is not None else read.item.rank or 0
        rows.append([
            read.src, utf8(str(read.item.path)), utf8(read.item.path.name), read.item.role, report.format, report.sha256, read.item.bytes,
            rank, report.trace_id, report.base_ns, report.base_ns, report.events, json.dumps(report.kept),
            json.dumps(report.dropped), report.truncated, json.dumps(report.meta, default=str),
        ])  # fmt: skip
    con.executemany(f"INSERT INTO stage.sources VALUES ({', '.join('?' * 16)})", rows)


def _context(run_id: str, manifest: RunManifest | None) -> LinkContext:
    if manifest is None:
        return LinkContext(run_id=run_id)
    passes = tuple((item.name, item.start_ns) for item in manifest.passes)
    if manifest.capture is not None and manifest.capture.end_ns >= manifest.capture.start_ns:
        start, end = manifest.capture.start_ns, manifest.capture.end_ns
        return LinkContext(run_id=run_id, window_start_ns=start, window_end_ns=end, passes=passes)
    profiled = [item for item in manifest.passes if item.name == "profiled"] or list(manifest.passes)[-1:]
    if not profiled or profiled[0].end_ns < profiled[0].start_ns:  # the clock was set back: no window
        return LinkContext(run_id=run_id, passes=passes)
    return LinkContext(
        run_id=run_id, window_start_ns=profiled[0].start_ns, window_end_ns=profiled[0].end_ns, passes=passes
    )


def _name_of(paths: Sequence[str]) -> str:
    first = Path(paths[0]).absolute()
    return first.name if len(paths) == 1 else f"{first.name} and {len(paths) - 1} more"


def default_target(paths: Sequence[str]) -> Path:
    """Where an ingest goes without --out: run.duckdb in a run directory, else the first path's name in this directory."""
    first = Path(paths[0])
    if len(paths) == 1 and (first / MANIFEST_NAME).exists():
        return first / "run.duckdb"
    stem = first.name if first.name not in ("", "..") else first.resolve().name
    for suffix in (".gz", ".zst", ".json", ".trace", ".pt", ".sqlite", ".nsys-rep"):
        stem = stem.removesuffix(suffix)
    return Path(f"{stem.strip('*?[]') or 'run'}.duckdb")
