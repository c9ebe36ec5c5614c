"""Files that other programs read a run from: a trace for a viewer, tables as Parquet."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from traces.errors import UsageProblem
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
    with _replacing(target) as scratch, _opened(scratch, compressed=target.suffix == ".gz") as stream:
        return TraceWriter(line, stream).write(overlay=overlay)


def write_parquet(store: TraceStore, folder: Path) -> dict[str, int]:
    """Write every table of the data contract, this run's rows, as `folder`/TABLE.parquet; rows by table.

    Files of these names are replaced, all at once at the end. Raises UsageProblem where they cannot be written.
    """
    import pyarrow.parquet as pq

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    rows: dict[str, int] = {}
    with _replacing(folder / "tables") as scratch:
        scratch.mkdir()
        for name in table_names():
            # A piece at a time comes in any order of rows, which a table does not promise anyway.
            found = store.connection.sql(f"SELECT * FROM {name} WHERE run_id = ?", params=[store.run_id])
            reader = found.to_arrow_reader(_BATCH_ROWS)
            with pq.ParquetWriter(scratch / f"{name}.parquet", reader.schema, compression="zstd") as writer:
                rows[name] = 0
                for batch in reader:
                    writer.write_batch(batch)
                    rows[name] += batch.num_rows
        for name in rows:
            (scratch / f"{name}.parquet").replace(folder / f"{name}.parquet")
    return rows


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A path beside `target`. A file made there replaces `target` when the block ends well; it never stays otherwise."""
    if target.is_dir() or not target.name:
        raise UsageProblem(f"{target} is a directory", hint="give a file name, such as trace.json.gz")
    scratch = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        yield scratch
        if scratch.is_file():
            scratch.replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path, *, compressed: bool) -> Iterator[IO[bytes]]:
    if not compressed:
        with path.open("wb") as plain:
            yield plain
        return
    from isal import igzip

    with igzip.open(path, "wb", compresslevel=_GZIP_LEVEL) as stream:  # type: ignore[no-untyped-call]
        yield stream


def _unwritable(target: Path, error: OSError) -> UsageProblem:
    return UsageProblem(f"cannot write {target}: {error.strerror or error}", hint="choose another path, or free space")
