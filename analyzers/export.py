"""Files that other programs read a run from: a trace for a viewer, tables as Parquet."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from traces.errors import UsageProblem
from traces.output import folder_for, output, refuse_unfit, unwritable
from traces.store import TraceStore, table_names

if TYPE_CHECKING:
    from analyzers.report.perfetto import Written

_BATCH_ROWS = 100_000
_GZIP_LEVEL = 1


def write_trace(store: TraceStore, target: Path, *, overlay: bool = False) -> Written:
    """Write the store's run as a Chrome trace, compressed where `target` ends in .gz; all or nothing.

    `overlay` leaves out the recording's own activities. Raises UsageProblem where it cannot be written, NothingToAnalyze
    where the run has nothing with a time.
    """
    from analyzers.export_trace import Timeline
    from analyzers.report.perfetto import TraceWriter

    line = Timeline.of(store, overlay=overlay)
    with output(target, example="trace.json.gz") as file, _packed(file, compressed=target.suffix == ".gz") as stream:
        return TraceWriter(line, stream).write(overlay=overlay)


def write_parquet(store: TraceStore, folder: Path) -> dict[str, int]:
    """Write every table of the data contract, this run's rows, as `folder`/TABLE.parquet; rows by table.

    Files of these names are replaced once all are written: all of them or none. Raises UsageProblem where that cannot be.
    """
    names = table_names()
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageProblem(f"{folder} is no directory", hint="give a directory for the tables")
        for name in names:
            _refuse_irregular(folder / f"{name}.parquet")
        with folder_for(folder), _scratch_in(folder) as scratch:
            rows = {name: _write_table(store, name, scratch / f"{name}.parquet") for name in names}
            _move_all(scratch, folder, [f"{name}.parquet" for name in names])
    except OSError as error:
        raise unwritable(folder, error) from error
    return rows


def _refuse_irregular(target: Path) -> None:
    """Raises UsageProblem for what a table cannot replace without loss."""
    hint = "give another directory for the tables"
    refuse_unfit(target, hint=hint)
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise UsageProblem(f"{target} is no regular file", hint=hint)


def _write_table(store: TraceStore, name: str, target: Path) -> int:
    """Write the run's rows of a table; how many there are."""
    import pyarrow.parquet as pq

    # A piece at a time comes in any order of rows, which a table does not promise anyway.
    found = store.connection.sql(f"SELECT * FROM {name} WHERE run_id = ?", params=[store.run_id])
    reader = found.to_arrow_reader(_BATCH_ROWS)
    rows = 0
    with pq.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _move_all(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Move files into `folder`. Where one cannot be, those that were moved go and what was there before comes back."""
    kept = source / "kept"
    kept.mkdir()
    moved: list[str] = []
    try:
        for name in names:
            if (folder / name).exists():
                (folder / name).replace(kept / name)
            moved.append(name)
            (source / name).replace(folder / name)
    except BaseException:
        for name in moved:
            if (kept / name).exists():
                (kept / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        raise


@contextmanager
def _scratch_in(folder: Path) -> Iterator[Path]:
    scratch = folder / f".tables.part-{os.getpid()}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(scratch)


@contextmanager
def _packed(file: BinaryIO, *, compressed: bool) -> Iterator[IO[bytes]]:
    if not compressed:
        yield file
        return
    from isal import igzip

    with igzip.open(file, "wb", compresslevel=_GZIP_LEVEL) as stream:  # type: ignore[no-untyped-call]
        yield stream
