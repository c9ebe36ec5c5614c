"""Writing a page: whole or not at all."""

from __future__ import annotations

from pathlib import Path

from traces.output import output


def write_page(target: Path, content: str) -> int:
    """Write `content` to `target`, replacing what is there at the end; returns bytes. Raises UsageProblem where it cannot."""
    data = content.encode("utf-8", "replace")
    with output(target, example="report.html") as stream:
        stream.write(data)
    return len(data)
