"""What a log of an agent is read to: one row per request, and where the log shows the prompts, hashes of their parts.

A batch holds the requests of one file or of a part of it, in the log's order. `UNITS` lie beside it in logs that show
what prompts consist of (block hashes, whole message lists): then reuse is found by comparing; otherwise by lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from traces.agentlogs.measure import Measure
from traces.errors import UnreadableInput
from traces.printable import utf8

REQUEST_COLUMNS: dict[str, pl.DataType] = {
    "line": pl.Int64(),  # of the file, from 1; of a JSON document, the request's number from 1
    "session": pl.String(),  # NULL where the log knows no sessions
    "parent_session": pl.String(),  # of a sub-agent's
    "start_ns": pl.Int64(),  # on the log's clock; NULL unknown
    "input_tokens": pl.Int64(),  # whole prompt, cached part included
    "output_tokens": pl.Int64(),
    "cached_tokens": pl.Int64(),  # that the provider says it reused; NULL where the log does not tell
    "reusable_tokens": pl.Int64(),  # that the log says equal an earlier prompt's start; NULL where it does not tell
    "model": pl.String(),
    "message_id": pl.String(),
    "tool_step": pl.Boolean(),  # a tool's result came with this request; NULL unknown
    "tool_wait_ns": pl.Int64(),  # between the earlier answer and this request, for tools; NULL unknown
    "api_ns": pl.Int64(),  # from request to answer as the client saw it; NULL unknown
    "compaction": pl.Boolean(),  # the log says that the history was rewritten before this request
    "token_source": pl.String(),  # 'recorded' | 'tokenizer' | 'estimate': of input_tokens and output_tokens
}
MAX_TOKENS = (1 << 31) - 1  # of one request; a count beyond is a fault in the file, and must not overflow sums
PROBLEMS_LISTED = 20
SKIP, STOP = "skip", "stop"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProblem:
    """A record that is none."""

    path: Path
    line: int  # from 1; of a JSON document, the record's number
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What prompts consist of: request r has the units offsets[r] to offsets[r + 1].

    `chain` names a unit and all before it, so two prompts are equal as far as their chains are. `content` names the
    unit alone, wherever it stands, and `answers` the units of each request's output; both are None where a log shows
    prefix hashes only. `role` indexes ROLES.
    """

    offsets: Ints
    chain: Ints
    tokens: npt.NDArray[np.int32]
    content: Ints | None = None
    role: npt.NDArray[np.int8] | None = None
    answer_offsets: Ints | None = None
    answers: Ints | None = None

    def of_requests(self, chosen: npt.NDArray[np.bool_]) -> Units:
        """The units of some of the requests."""
        lengths = np.diff(self.offsets)
        here = np.repeat(chosen, lengths)
        answers = answer_offsets = None
        if self.answers is not None and self.answer_offsets is not None:
            said = np.diff(self.answer_offsets)
            answers = self.answers[np.repeat(chosen, said)]
            answer_offsets = _ends(said[chosen])
        return Units(
            offsets=_ends(lengths[chosen]), chain=self.chain[here], tokens=self.tokens[here],
            content=None if self.content is None else self.content[here],
            role=None if self.role is None else self.role[here], answer_offsets=answer_offsets, answers=answers,
        )  # fmt: skip


def _ends(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


ROLES = ("tools", "system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests of one file in the log's order, REQUEST_COLUMNS; `block_tokens` is the size of a whole unit.

    With units, rows without a session belong to sessions that are to be found by their prefixes.
    """

    path: Path
    format: str
    requests: pl.DataFrame
    units: Units | None = None
    block_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class Reading:
    """How logs are read, and what was noticed: shared by all files of one call."""

    measure: Measure
    bad_rows: str = SKIP
    skipped: int = 0
    repeated: int = 0  # records that only repeat a message's usage
    problems: list[LogProblem] = field(default_factory=list)  # the first PROBLEMS_LISTED of the skipped
    notes: list[str] = field(default_factory=list)
    block_files: int = 0  # files of block ids by now
    counted: set[tuple[str, str]] = field(default_factory=set)  # (session, message id) seen in any file

    def bad(self, path: Path, line: int, message: str) -> None:
        """Note a record that is left out. Raises UnreadableInput where bad rows shall stop the reading."""
        if self.bad_rows == STOP:
            raise UnreadableInput(f"{path}:{line}: {message}", hint="mend the record, or leave out --bad-rows stop")
        self.skipped += 1
        if len(self.problems) < PROBLEMS_LISTED:
            self.problems.append(LogProblem(path=path, line=line, message=message))

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a file is recognised by."""

    path: Path
    records: Sequence[dict[str, Any]]  # the first JSON objects of a file of JSON lines
    columns: Sequence[str] = ()  # of a CSV's header, in small letters
    document: Any = None  # a file that is one JSON value

    @property
    def label(self) -> str:
        """The file's name as text, for it may hold any bytes."""
        return utf8(self.path.name)


class AgentLogFormat(Protocol):
    """One format."""

    name: str

    def fits(self, head: Head) -> bool:
        """Whether the file is of this format."""
        ...

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """The requests, in the log's order. Records that are none go to reading.bad."""
        ...


def frame_of(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows as REQUEST_COLUMNS; keys left out are NULL."""
    columns = {
        name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in REQUEST_COLUMNS.items()
    }
    return pl.DataFrame(columns)
