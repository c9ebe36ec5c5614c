"""Requests as they arrive, before they have text: times, lengths, sessions, and what prompts share.

`planned_arrivals` makes them of any specification; `profiler.workloads.plan` gives them text. All of it is pure: equal
specification, seed and log give equal frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, Protocol

import polars as pl

from profiler.workloads.options import parse_options, with_options
from profiler.workloads.request import JsonObject, PlannedRequest
from traces.errors import UsageProblem
from traces.requestlogs.base import PLANNED_COLUMNS

MAX_REQUESTS = 1_000_000
UNBOUNDED_TOKENS = 1 << 40


class PromptSource(Protocol):
    """Prompts that are known part by part, which `frame` alone does not tell."""

    def requests(self, frame: pl.DataFrame, seed: int) -> Iterator[PlannedRequest]:
        """A request per row of `frame`, its prompt cut to `input_tokens`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What is to be sent. `frame` has PLANNED_COLUMNS and nothing else, one row per request in order of `index`.

    `arrival_ns` is NULL for a turn that waits for the one before it. Block i of a prompt reaches from token
    round(i * block_tokens) to round((i + 1) * block_tokens), the last one to the end of the prompt.
    """

    frame: pl.DataFrame
    block_tokens: float | None = None  # tokens of a hash id: whole as logged, perhaps not after length_scale
    closed: bool = False  # turns wait for each other
    notes: tuple[str, ...] = ()  # what a reader of the numbers has to know
    source: dict[str, Any] = field(default_factory=dict)  # of a log: path, format, rows skipped, …
    prompts: PromptSource | None = None  # None: `synthesis` makes them of the frame

    @property
    def whole_block_tokens(self) -> int | None:
        """Tokens of a hash id where that is a whole number."""
        whole = self.block_tokens is not None and float(self.block_tokens).is_integer()
        return int(self.block_tokens) if self.block_tokens is not None and whole else None


class ArrivalWorkload(Protocol):
    """A workload that says when requests of what length come, and leaves their text to `synthesis`."""

    name: ClassVar[str]
    options_type: ClassVar[type[Any]]

    def arrivals(self, options: Any, seed: int) -> Arrivals: ...


def planned_arrivals(spec: str, seed: int, **options: object) -> Arrivals:
    """The arrivals of `spec` with further `options` (key=value of its workload). Raises StepscopeError.

    Of `agent`, `chat` and `batch` lengths are those of the built-in tokenizer, without a chat template's tokens.
    """
    from profiler.workloads.plan import arrival_workload, build_plan  # which imports this module

    spec = with_options(spec, options)
    name, _, text = spec.strip().partition(":")
    workload = arrival_workload(spec)
    if workload is not None:
        return checked(name, workload.arrivals(parse_options(name, workload.options_type, text), seed))
    return _of_plan(build_plan(spec, seed, max_context_tokens=UNBOUNDED_TOKENS).requests)


def planned_frame(spec: str, seed: int, **options: object) -> pl.DataFrame:
    """The frame of `planned_arrivals`: PLANNED_COLUMNS."""
    return planned_arrivals(spec, seed, **options).frame


def checked(name: str, arrivals: Arrivals) -> Arrivals:
    """`arrivals`. Raises UsageProblem where there are none."""
    if arrivals.frame.is_empty():
        raise UsageProblem(f"workload {name} has no request", hint="ask for more requests, or another member of a pool")
    return arrivals


def bounded(name: str, n_requests: int) -> None:
    """Raises UsageProblem where a plan would have too many requests."""
    if n_requests > MAX_REQUESTS:
        raise UsageProblem(
            f"workload {name} would have {n_requests:,} requests or more, above {MAX_REQUESTS:,}",
            hint="take a part of it, such as --first 1000",
        )


def as_planned(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with PLANNED_COLUMNS and nothing else: those it lacks are NULL, `index` counts the rows."""
    missing = (pl.lit(None, dtype=dtype).alias(name) for name, dtype in PLANNED_COLUMNS.items() if name not in frame)
    numbered = frame.with_columns(*missing).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("index"))
    return numbered.select(pl.col(name).cast(dtype) for name, dtype in PLANNED_COLUMNS.items())


def _of_plan(requests: Sequence[PlannedRequest]) -> Arrivals:
    """Arrivals of requests that have text; a turn shares with the one before what messages they begin with alike."""
    before: dict[str, PlannedRequest] = {}
    rows = []
    for item in requests:
        rows.append({
            "arrival_ns": item.arrival_offset_ns, "session_id": item.session_id, "turn": item.turn,
            "input_tokens": _length(item), "output_tokens": item.max_tokens,
            "prefix_tokens": _common(before.get(item.session_id), item), "tool_wait_ns": item.tool_wait_ns,
            "think_ns": item.think_ns,
        })  # fmt: skip
        before[item.session_id] = item
    frame = as_planned(pl.DataFrame(rows, schema={name: PLANNED_COLUMNS[name] for name in rows[0]}))
    due = pl.col("arrival_ns").fill_null(pl.col("arrival_ns").min().over("session_id")).fill_null(0)
    closed = bool(frame["arrival_ns"].null_count())
    notes = ("what sessions have in common, a system prompt or tools, is not counted as shared",) if closed else ()
    return Arrivals(frame=as_planned(frame.sort(due, maintain_order=True)), closed=closed, notes=notes)


def _length(request: PlannedRequest) -> int:
    """Tokens of the built-in tokenizer: a character is one."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    if request.prompt is not None:
        return len(request.prompt)
    return sum(map(_characters, request.messages or ())) + _tool_characters(request)


def _common(before: PlannedRequest | None, request: PlannedRequest) -> int:
    """Tokens of the tools and of the messages that both begin with, the answer in between among them."""
    if before is None or before.messages is None or request.messages is None or before.tools != request.tools:
        return 0
    pairs = zip(before.messages, request.messages, strict=False)
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    answer = request.messages[equal : equal + 1] if equal == len(before.messages) else ()
    answered = (item for item in answer if item.get("role") == "assistant")
    shared = (*request.messages[:equal], *answered)
    return sum(map(_characters, shared)) + _tool_characters(request)


def _characters(message: JsonObject) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, str) else len(json.dumps(content))


def _tool_characters(request: PlannedRequest) -> int:
    return sum(len(json.dumps(tool)) for tool in request.tools or ())
