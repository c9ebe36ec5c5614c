"""The formats of agent logs, and which one a file has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traces.agentlogs.base import AgentLogFormat, Batch, Head, Reading
from traces.agentlogs.blocks import BlockHashFormat
from traces.agentlogs.chat import ChatFormat
from traces.agentlogs.claude_code import ClaudeCodeFormat
from traces.agentlogs.codex import CodexFormat
from traces.agentlogs.coding import BlockSessionFormat, CodingCsvFormat
from traces.agentlogs.files import head_of, log_files
from traces.agentlogs.openhands import OpenHandsFormat
from traces.agentlogs.sweagent import MiniSweAgentFormat, SweAgentFormat
from traces.agentlogs.taubench import TauBenchFormat
from traces.agentlogs.tracelab import TracelabCsvFormat, TracelabRoundsFormat
from traces.errors import UnreadableInput, UsageProblem

# The first that fits reads: the wide ones (any messages with roles) come last.
FORMATS: tuple[AgentLogFormat, ...] = (
    ClaudeCodeFormat(), CodexFormat(), TracelabRoundsFormat(), TracelabCsvFormat(), BlockHashFormat(),
    BlockSessionFormat(), CodingCsvFormat(), SweAgentFormat(), TauBenchFormat(), OpenHandsFormat(),
    MiniSweAgentFormat(), ChatFormat(),
)  # fmt: skip


def known_formats() -> str:
    """Names of all formats, for a hint."""
    return ", ".join(item.name for item in FORMATS)


def read_agent_logs(paths: Sequence[str], reading: Reading, *, name: str | None = None) -> Iterator[Batch]:
    """The requests of all logs that `paths` name, each file by its own format, or by format `name`.

    Raises UsageProblem for an unknown `name`; UnreadableInput where a file that was named cannot be read or is of no
    known format. Of files that were found in a folder or by a pattern, such are left out, and said in reading.notes.
    """
    chosen = None if name is None else _by_name(name)
    named, found = log_files(paths)
    for path in (*named, *found):
        try:
            head = head_of(path)
            fitting = chosen or _fitting(head)
        except UnreadableInput as error:
            if path in named:
                raise
            reading.note(f"left out {path.name}: {error.message}")
            continue
        yield from fitting.read(head, reading)


def _by_name(name: str) -> AgentLogFormat:
    for item in FORMATS:
        if item.name == name:
            return item
    raise UsageProblem(f"unknown format {name}", hint=f"known: {known_formats()}")


def _fitting(head: Head) -> AgentLogFormat:
    for item in FORMATS:
        if item.fits(head):
            return item
    raise UnreadableInput(
        f"{head.path} is a log of no known format, or is cut off before its first whole record",
        hint=f"known: {known_formats()}; name one with --format",
    )
