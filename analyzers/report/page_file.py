"""Writing a page: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from traces.errors import UsageProblem


def write_page(target: Path, content: str) -> int:
    """Write `content` to `target`, replacing what is there at the end; returns bytes. Raises UsageProblem where it cannot."""
    data = content.encode("utf-8", "replace")
    try:
        if target.is_dir() or not target.name:
            raise UsageProblem(f"{target} is a directory", hint="give a file name, such as report.html")
        if target.is_symlink() or (target.exists() and not target.is_file()):  # /dev/stdout, a pipe: nothing to replace
            target.write_bytes(data)
            return len(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".report-", suffix=".html")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageProblem(
            f"{target} cannot be written: {error.strerror or error}", hint="give another place with --out"
        ) from error
    return len(data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
