"""TraceStore: a run database, read-only by default, and the path from a name to a run in it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import duckdb

from traces.contract import columns, schema_sql, select_run, table_names
from traces.damage import AGAIN, is_damage, reading, unreadable
from traces.errors import NothingToAnalyze, StepscopeError, UnreadableInput, UsageProblem
from traces.lock import sole_writer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["DATABASE_NAME", "TraceStore", "columns", "frame", "named_sql", "schema_sql", "table_names", "writing"]

DATABASE_NAME = "run.duckdb"
_FULL = ("No space left", "File too large", "Disk quota exceeded")  # as the C library words them
_NO_PROGRESS_BAR = "SET enable_progress_bar = false"  # DuckDB writes one to stdout when a statement takes seconds
# DuckDB 2.0.1 narrows a sum to too few bytes where a join finds nothing and the result is ordered: wrong sums or an error.
SAFE_SETTINGS = {"disabled_optimizers": "compressed_materialization"}
_READ_SETTINGS = {"enable_external_access": "false", "autoload_known_extensions": "false", **SAFE_SETTINGS}


def named_sql(name: str, package: str = "traces") -> str:
    """Text of `sql/NAME.sql` in a package of ours."""
    return resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def split_run(text: str) -> tuple[Path, str | None]:
    """`PATH[#run_id]` as path and run id. Raises UsageProblem where there is no PATH: this folder is written `.`."""
    path, mark, run_id = text.partition("#")
    if mark and _exists(Path(text)):  # a file may really have '#' in its name
        return Path(text), None
    if not path:
        raise UsageProblem(
            f"no run is named by '{text}'", hint="give a run directory or a .duckdb file; `.` is this folder"
        )
    return Path(path), run_id or None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, a NUL in it: what is wrong is said where it is opened
        return False


def database_path(path: Path) -> Path:
    """The database that `path` names: itself, or run.duckdb in a run directory."""
    try:
        path.stat()
    except FileNotFoundError as error:
        raise UnreadableInput(f"{path} does not exist", hint="give a run directory or a .duckdb file") from error
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableInput(f"{path} cannot be reached: {reason}", hint="check the path") from error
    if path.is_dir():
        inside = path / DATABASE_NAME
        if not inside.exists():
            raise UnreadableInput(
                f"{path} has no {DATABASE_NAME}", hint=f"make one: stepscope ingest {path} --out {inside}"
            )
        return inside
    return path


class TraceStore:
    """One run in a database.

    `run_id` is the newest run unless the name it was opened by ends in `#run_id`. Raises UnreadableInput where the
    file is not a database of ours, UsageProblem for an unknown run id. A `with` block that reads it raises
    UnreadableInput, too, where what it reads is damaged or was edited into what no recording holds.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path, run_id: str) -> None:
        self.connection = connection
        self.path = path
        self.run_id = run_id

    @classmethod
    def open(cls, name: str | Path) -> TraceStore:
        """Open read-only by `PATH[#run_id]`, PATH being a run directory or a .duckdb file."""
        raw_path, run_id = split_run(str(name))
        path = database_path(raw_path)
        try:
            connection = duckdb.connect(str(path), read_only=True, config=dict(_READ_SETTINGS))
        except duckdb.Error as error:  # a damaged file comes as nearly any of its kinds
            hint = "another stepscope may be writing it" if "lock" in str(error) else "make it with `stepscope ingest`"
            raise UnreadableInput(f"{path} is not a readable run database", hint=hint) from error
        try:
            with reading(path):
                connection.execute(_NO_PROGRESS_BAR)
                return cls(connection, path, select_run(connection, path, run_id))
        except BaseException:
            connection.close()
            raise

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> pl.DataFrame:
        """Rows of a statement as a frame."""
        return frame(self.connection.sql(sql, params=parameters))

    def named(self, name: str, package: str = "traces", **parameters: Any) -> pl.DataFrame:
        """Rows of `sql/NAME.sql`; `$run_id` is bound where the statement uses it."""
        sql = named_sql(name, package)
        if "$run_id" in sql:
            parameters["run_id"] = self.run_id
        return self.query(sql, parameters or None)

    def table(self, name: str) -> pl.DataFrame:
        """A whole table of the data contract, this run's rows only."""
        if name not in table_names():
            raise UsageProblem(f"unknown table {name}", hint=f"known: {', '.join(table_names())}")
        return self.query(f"SELECT * FROM {name} WHERE run_id = ?", [self.run_id])

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def __enter__(self) -> TraceStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
        if isinstance(error, duckdb.Error) and not isinstance(error, duckdb.InterruptException):
            problem = unreadable(error, self.path)
            if problem is not None:
                raise problem from error


def frame(result: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """A result as a frame; HUGEINT sums come back as Int64, which all our nanoseconds fit.

    Raises UnreadableInput where one does not: no recording holds such counts or times.
    """
    import polars as pl  # an ingest does without

    data = pl.DataFrame(result.to_arrow_table())
    wide = [name for name, kind in data.schema.items() if kind in (pl.Int128, pl.Decimal)]
    try:
        return data.with_columns(pl.col(name).cast(pl.Int64) for name in wide) if wide else data
    except pl.exceptions.InvalidOperationError as error:
        raise UnreadableInput(
            f"a sum of {', '.join(wide)} is beyond 64 bits",
            hint=f"the database may have been edited or damaged: {AGAIN}",
        ) from error


@contextmanager
def writing(target: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database that replaces `target` when the block ends well, and vanishes otherwise.

    An existing database is copied first, so that what it holds stays and a failure (a full disk, ctrl-C) leaves it as
    it was. One process writes at a time, and another one waits its turn for a while (lock.py). Atomicity comes from the
    rename: DuckDB's memory limit does not bound one large transaction. A link stays, and what it points at is replaced.
    """
    try:
        target = _place(target)
        if target.is_dir() or not target.name:
            raise UsageProblem(f"{target} is a directory", hint="give a file name that ends in .duckdb")
        if target.exists() and not target.is_file():
            raise UsageProblem(f"{target} is no regular file", hint="give a file name that ends in .duckdb")
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageProblem(f"cannot write {target}: {error.strerror}", hint="choose another --out") from error
    try:
        with sole_writer(target):
            yield from _replacing(target)
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except (duckdb.Error, OSError) as error:
        problem = _write_problem(error, target)
        if problem is None:
            raise
        raise problem from error


def _place(target: Path) -> Path:
    """Where the links of `target` lead; `target` itself where it is none."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _replacing(target: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    before = _version(target)
    scratch = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        _prepare(target, scratch)
        connection = duckdb.connect(str(scratch), config=dict(SAFE_SETTINGS))
        try:
            connection.execute("SET preserve_insertion_order = false")
            connection.execute(_NO_PROGRESS_BAR)
            if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'runs'").fetchall():
                connection.execute(schema_sql())
            yield connection
            connection.execute("CHECKPOINT")
        finally:
            connection.close()
        if _version(target) != before:
            raise UsageProblem(
                f"{target} was changed by another process meanwhile: nothing was written", hint="run the command again"
            )
        scratch.replace(target)
    finally:
        for leftover in (scratch, scratch.with_name(scratch.name + ".wal")):
            with contextlib.suppress(OSError):  # where it could not be made, what kept it from that has been said
                leftover.unlink(missing_ok=True)


def _version(target: Path) -> tuple[int, int, int] | None:
    """What tells one state of a file from the next: a run added by a second ingest must not be replaced unseen."""
    try:
        status = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _write_problem(error: duckdb.Error | OSError, target: Path) -> StepscopeError | None:
    """What kept `target` from being written; None where the error is none of the disk's."""
    text = str(error)
    if is_damage(error) and target.exists():
        return UnreadableInput(f"{target} is damaged: {text.splitlines()[0][:200]}", hint=AGAIN)
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageProblem(
            f"not enough memory to make {target}: {text.splitlines()[0]}",
            hint="a name of many megabytes, or too little memory",
        )
    if any(words in text for words in _FULL):
        return UsageProblem(f"the disk is full: cannot write {target}", hint="free space, or --out elsewhere")
    ours = isinstance(error, duckdb.IOException) or str(target.parent) in str(getattr(error, "filename", ""))
    if not ours:
        return None
    reason = getattr(error, "strerror", None) or text.splitlines()[0]
    return UsageProblem(f"cannot write {target}: {reason}", hint="choose another --out")


def _prepare(target: Path, scratch: Path) -> None:
    scratch.unlink(missing_ok=True)
    if target.exists():
        with contextlib.suppress(NothingToAnalyze):  # a database of ours without a run may be filled
            TraceStore.open(target).close()  # refuses what is not ours before anything is written
        shutil.copyfile(target, scratch)
