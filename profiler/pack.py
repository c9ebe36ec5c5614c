"""Compressing recordings once the engine is gone.

The engine writes plain JSON: compressing at its own (highest) level took two thirds of stop_profile, all of which the
engine stands still for. Here it takes a tenth of a second per 100 MB.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from isal import igzip

LEVEL = 2
BUFFER_BYTES = 1 << 20


def pack_traces(directory: Path) -> list[str]:
    """Turn *.json and unfinished *.json.tmp of `directory` into *.json.gz; returns what is to be said about them.

    A recording that cannot be compressed stays as it is. One that ends inside a record is kept, and named.
    """
    remarks = []
    for path in sorted([*directory.glob("*.json"), *directory.glob("*.json.tmp")]):
        if not _ends_whole(path):
            remarks.append(
                f"{path.name.removesuffix('.tmp')} is cut off: the engine died or the disk was full as it was written"
            )
        target = path.with_name(path.name.removesuffix(".tmp") + ".gz")
        scratch = target.with_name(target.name + ".part")
        try:
            packed = igzip.open(scratch, "wb", compresslevel=LEVEL)  # type: ignore[no-untyped-call]
            with path.open("rb") as plain, packed:
                shutil.copyfileobj(plain, packed, BUFFER_BYTES)
            scratch.replace(target)
            path.unlink()
        except OSError as error:
            remarks.append(f"{path.name} could not be compressed: {error.strerror}")
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
    return remarks


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return file.read().rstrip().endswith((b"}", b"]"))
