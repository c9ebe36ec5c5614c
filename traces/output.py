"""Files for people and other programs: whole or not at all, written through what is no file, never over a run database."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from traces.errors import UsageProblem

_HINT = "choose another place, or free space"
_DATABASE_MARK, _MARK_AT = b"DUCK", 8  # where DuckDB writes it in every file


@contextmanager
def output(target: Path, *, example: str) -> Iterator[BinaryIO]:
    """A stream whose bytes replace `target` when the block ends well; nothing stays otherwise. A missing folder is made.

    A link, a device or a pipe (/dev/stdout) is written through, as far as the block gets. Raises UsageProblem where
    `target` cannot be written or is a run database; `example` is a name that could be, for the hint.
    """
    try:
        refuse_unfit(target, hint=f"give another file name, such as {example}")
        if target.is_symlink() or (target.exists() and not target.is_file()):
            with target.open("wb") as stream:
                yield stream
            return
        with folder_for(target.parent), _replacing(target) as stream:
            yield stream
    except BrokenPipeError:  # who reads what we write has seen enough
        raise
    except OSError as error:
        raise unwritable(target, error) from error


def refuse_unfit(target: Path, *, hint: str) -> None:
    """Raises UsageProblem where `target` is a folder or, by whatever name, a run database: a recording may be gone with it."""
    if target.is_dir() or not target.name:
        raise UsageProblem(f"{target} is a directory", hint=hint)
    if target.is_file() and _is_database(target):
        raise UsageProblem(f"{target} is a run database: nothing was written", hint=hint)


@contextmanager
def folder_for(folder: Path) -> Iterator[None]:
    """Make `folder` and those above it; where the block fails, what was made and is empty goes again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # a file of that name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def scratch_beside(target: Path) -> Path:
    """Where the next version of `target` grows, of this process alone."""
    return target.with_name(f".{target.name}.part-{os.getpid()}")


def unwritable(target: Path, error: OSError) -> UsageProblem:
    """What kept `target` from being written."""
    return UsageProblem(f"cannot write {target}: {error.strerror or error}", hint=_HINT)


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    scratch = scratch_beside(target)
    try:
        with scratch.open("wb") as stream:
            yield stream
        scratch.replace(target)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(_MARK_AT)
            return file.read(len(_DATABASE_MARK)) == _DATABASE_MARK
    except OSError:  # not ours to read: whether it may be written is seen next
        return False
