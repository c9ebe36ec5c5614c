"""What a database that was damaged, cut or edited raises while it is read, in words a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from traces.errors import StepscopeError, UnreadableInput, UsageProblem

AGAIN = "ingest the recording again"
# A statement that does not fit its tables. Their names and types were compared when the database was opened
# (contract.py), so this is a bug of ours, which keeps its traceback.
_BUGS = (
    duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException,
    duckdb.NotImplementedException,
)  # fmt: skip
_DAMAGED = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
_DAMAGED_WORDS = ("corrupt", "checksum", "truncated", "end of file", "could not read enough bytes")


def is_damage(error: BaseException) -> bool:
    """Whether the file itself is what failed, and not what was asked of it."""
    text = str(error).lower()
    return isinstance(error, _DAMAGED) or (
        isinstance(error, duckdb.Error) and any(words in text for words in _DAMAGED_WORDS)
    )


def unreadable(error: duckdb.Error, path: Path) -> StepscopeError | None:
    """What `error`, raised by reading the database at `path`, tells a user; None for a bug of ours."""
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if is_damage(error):
        return UnreadableInput(f"{path} is damaged: {reason}", hint=AGAIN)
    if isinstance(error, _BUGS):
        return None
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageProblem(
            f"not enough memory to read {path}: {reason}", hint="free memory, and run the command again"
        )
    return UnreadableInput(
        f"{path} cannot be read as a run: {reason}", hint=f"it may have been edited or damaged: {AGAIN}"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of the database at `path` become UnreadableInput; an interruption stays one."""
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except duckdb.Error as error:
        problem = unreadable(error, path)
        if problem is None:
            raise
        raise problem from error
