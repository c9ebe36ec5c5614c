"""`requests.jsonl`: one line per request the client sent, appended when the request has ended."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from traces.errors import UsageProblem

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it. Times in ns since the epoch; unknown is None."""

    client_request_id: str
    pass_name: str  # 'pass' in the file
    index: int  # of the plan
    session_id: str
    parent_session_id: str | None
    turn: int
    planned_ns: int | None  # when the plan wanted it sent; None in a closed loop
    sent_ns: int
    late_ns: int  # sent after it was due, in a closed loop too: the generator's own delay
    first_token_ns: int | None
    last_token_ns: int | None
    finished_ns: int
    prompt_tokens: int | None  # from the API's usage, like the next two
    cached_tokens: int | None
    output_tokens: int | None
    status: str  # 'ok' | 'error' | 'aborted'
    error: str | None
    http_status: int | None
    finish_reason: str | None
    tool_ns: int  # planned wait for a tool after this turn
    think_ns: int  # planned think time after this turn
    token_source: str | None  # 'ids': token_ns has one time per token; 'chunks': one per chunk with text
    token_ns: list[int]

    def line(self) -> bytes:
        """The record as one line of JSON."""
        values = {"pass" if key == "pass_name" else key: value for key, value in asdict(self).items()}
        return json.dumps({"stepscope_request": RECORD_VERSION, **values}, separators=(",", ":")).encode() + b"\n"


class RequestLog:
    """Appends records. Each is handed to the kernel in one write, so a crash of ours loses only what is in flight."""

    def __init__(self, path: Path) -> None:
        """Raises UsageProblem where `path` cannot be opened for appending."""
        self._path = path
        try:
            torn = path.exists() and path.stat().st_size > 0 and _last_byte(path) != b"\n"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageProblem(f"cannot write {path}: {error.strerror}", hint="give another --out") from error
        if torn:  # a line some earlier crash left: it must not swallow ours
            self._write(b"\n")

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def append(self, record: RequestRecord) -> None:
        """Raises UsageProblem where the disk is full."""
        self._write(record.line())

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            raise UsageProblem(
                f"cannot write {self._path}: {error.strerror}", hint="free space, or give another --out"
            ) from error


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as log:
        log.seek(-1, os.SEEK_END)
        return log.read(1)
