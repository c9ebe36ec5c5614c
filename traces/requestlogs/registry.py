"""The formats of request logs, and which one a file has."""

from __future__ import annotations

from pathlib import Path

from traces.errors import UnreadableInput, UsageProblem
from traces.requestlogs.azure import AzureFormat
from traces.requestlogs.bailian import BailianFormat
from traces.requestlogs.base import LogOptions, RequestLogFormat, RequestLogFrame
from traces.requestlogs.burstgpt import BurstGptFormat
from traces.requestlogs.chats import OpenAiFormat, ShareGptFormat
from traces.requestlogs.coding_agent import CodingAgentFormat
from traces.requestlogs.mooncake import MooncakeFormat
from traces.requestlogs.timed_trace import TimedTraceFormat
from traces.requestlogs.tracelab import TraceLabFormat

# Asked in this order what a file is: those with more to go by first.
FORMATS: tuple[RequestLogFormat, ...] = (
    AzureFormat(), BurstGptFormat(), TraceLabFormat(), CodingAgentFormat(), BailianFormat(), MooncakeFormat(),
    TimedTraceFormat(), ShareGptFormat(), OpenAiFormat(),
)  # fmt: skip
_HEAD_BYTES = 1 << 16


def read_request_log(path: Path, options: LogOptions, *, name: str | None = None) -> RequestLogFrame:
    """The log in `path`, read as format `name`, or as the one whose look it has.

    Raises UsageProblem for an unknown `name`, UnreadableInput where the file cannot be read or no format fits.
    """
    known = ", ".join(item.name for item in FORMATS)
    if name is not None:
        chosen = next((item for item in FORMATS if item.name == name), None)
        if chosen is None:
            raise UsageProblem(f"unknown request-log format {name!r}; known: {known}", hint=f"one of {known}")
        return chosen.read(path, options)
    try:
        with path.open("rb") as log:
            head = log.read(_HEAD_BYTES)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a request log") from error
    chosen = next((item for item in FORMATS if item.sniff(path, head)), None)
    if chosen is None:
        raise UnreadableInput(f"{path} looks like none of the request logs known: {known}", hint="name its format")
    return chosen.read(path, options)
