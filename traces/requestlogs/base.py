"""Request logs of public and private services, all read to one frame of planned requests.

The frame has one row per request, in order of arrival (PLANNED_COLUMNS). A row of the file that is no request is
skipped and reported with its line, or stops the reading, as the options say.

What prompts share is said in one of two ways. `hash_ids` name the blocks of a prompt: two prompts are equal as far as
their leading ids are. `prefix_tokens` say how much of a turn's prompt is the session's context before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from traces.errors import UnreadableInput

PLANNED_COLUMNS: dict[str, pl.DataType] = {
    "index": pl.Int64(),  # from 0, in order of arrival; requests of one time keep the file's order
    "line": pl.Int64(),  # of the file, from 1
    # after the first request of the log; NULL: due tool_wait_ns + think_ns after the session's turn before has ended
    "arrival_ns": pl.Int64(),
    "session_id": pl.String(),  # NULL where the log knows no sessions
    "turn": pl.Int64(),  # from 0 within the session
    "input_tokens": pl.Int64(),  # whole prompt, cached part included
    "output_tokens": pl.Int64(),
    "hash_ids": pl.List(pl.Int64()),  # of the prompt's blocks: equal ids mean equal text up to there; NULL unknown
    # leading tokens that are also those of the turn before (its prompt, then its output); NULL: unknown, or see hash_ids
    "prefix_tokens": pl.Int64(),
    "tool_wait_ns": pl.Int64(),  # after this turn; NULL unknown, like the next
    "think_ns": pl.Int64(),
}
PROBLEMS_LISTED = 20
MAX_TOKENS = 1 << 40  # a count beyond is a fault in the file, and must not overflow sums

SKIP, STOP = "skip", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How to read a log."""

    bad_rows: str = SKIP  # 'skip' | 'stop'
    first: int | None = None  # only so many requests, the first to arrive
    block_tokens: int | None = None  # tokens of a hash id; None: as the format has it
    ns_per_unit: int | None = None  # of a timestamp that is a number; None: as the format has it


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """A row that is no request."""

    line: int  # from 1
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLogFrame:
    """What a log holds."""

    format: str
    frame: pl.DataFrame  # PLANNED_COLUMNS
    origin_ns: int | None  # time of the first arrival since the epoch; unknown where the log has its own clock
    block_tokens: int | None  # tokens a hash id stands for; the last block of a prompt may be shorter
    out_of_order: int  # rows that were not in order of arrival in the file; 0 where sessions have clocks of their own
    skipped: int
    problems: tuple[RowProblem, ...]  # the first PROBLEMS_LISTED of the skipped
    notes: tuple[str, ...] = ()  # what a reader of the numbers has to know
    closed: bool = False  # the log tells what follows what in a session, not when: turns wait for each other


class RequestLogFormat(Protocol):
    """One format of log."""

    name: str

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether `path`, whose first bytes are `head`, is of this format."""
        ...

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """Raises UnreadableInput where no row can be read, and at the first bad row where options say 'stop'."""
        ...


def read_lines(path: Path) -> pl.DataFrame:
    """Columns `line` (from 1) and `text` (NULL where blank), line ends off. Raises UnreadableInput."""
    try:
        if path.stat().st_size == 0:
            raise UnreadableInput(f"{path} is empty", hint="give a request log")
        # A control character no log contains as the separator: the whole line is one field.
        frame = pl.read_csv(
            path, has_header=False, separator="\x01", quote_char=None, new_columns=["text"], infer_schema=False,
            truncate_ragged_lines=True, encoding="utf8-lossy",
        )  # fmt: skip
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give a request log") from error
    except pl.exceptions.PolarsError as error:
        raise UnreadableInput(f"cannot read {path}: {error}", hint="give a request log") from error
    return frame.select(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64), text=pl.col("text").str.strip_chars())


def settle(
    rows: pl.DataFrame, *, path: Path, log_format: str, block_tokens: int | None, epoch: bool, options: LogOptions,
    notes: tuple[str, ...] = (), closed: bool = False,
) -> RequestLogFrame:  # fmt: skip
    """Frame of `rows`: `line`, `arrival_ns` (on the log's clock), `problem` (text or NULL), and planned columns.

    A turn without an arrival stands behind the first of its session.
    """
    bad = rows.filter(pl.col("problem").is_not_null()).select("line", "problem")
    problems = tuple(RowProblem(line=line, message=message) for line, message in bad.head(PROBLEMS_LISTED).iter_rows())
    good = rows.filter(pl.col("problem").is_null())
    if problems and (options.bad_rows == STOP or good.is_empty()):
        first = problems[0]
        raise UnreadableInput(f"{path}:{first.line}: {first.message}", hint="mend the row, or have bad rows skipped")
    if good.is_empty():
        raise UnreadableInput(f"{path} holds no request", hint="give a request log with rows")
    due = pl.col("arrival_ns")
    if "session_id" in good.columns:
        due = due.fill_null(due.min().over("session_id"))
    good = good.with_columns(due.fill_null(due.min()).fill_null(0).alias("due"))
    out_of_order = 0 if closed else int(good.select((pl.col("due").diff() < 0).sum()).item())
    good = good.sort("due", maintain_order=True)
    origin_ns = int(good["due"][0])
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in PLANNED_COLUMNS.items() if name not in good]
    frame = good.head(len(good) if options.first is None else options.first).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("index"),
        pl.col("arrival_ns") - origin_ns,
        *(column for column in missing if column.meta.output_name() != "index"),
    )
    return RequestLogFrame(
        format=log_format,
        frame=frame.select(pl.col(name).cast(dtype) for name, dtype in PLANNED_COLUMNS.items()),
        origin_ns=origin_ns if epoch else None,
        block_tokens=block_tokens,
        out_of_order=out_of_order,
        skipped=bad.height,
        problems=problems,
        notes=notes,
        closed=closed,
    )


def token_problem(column: str, label: str, *, least: int) -> pl.Expr:
    """A message where integer `column` is unknown or out of bounds, else NULL."""
    wanted = f"{label} is not a whole number from {least}"
    return pl.when(~pl.col(column).is_between(least, MAX_TOKENS).fill_null(value=False)).then(pl.lit(wanted))
