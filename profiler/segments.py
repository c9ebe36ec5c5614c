"""Which tokens of a prompt are which message: by the engine's own template and tokenizer, with sentinels.

Engines give no offsets, and the first k messages alone need not render to a prefix of all of them. So the whole list is
rendered again with one message's content replaced: what changed is where that content lies. Tools are found by rendering
without them. Where the pieces do not fit together the answer is None.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from profiler.prompts import Prompt, Segments
from profiler.server import Server
from profiler.workloads.request import JsonObject, Plan, PlannedRequest

BUDGET_S = 120.0
ASK_TIMEOUT_S = 30.0

# (messages, tools) → ids of the rendered prompt; None where the server does not say
Tokenize: TypeAlias = Callable[[Sequence[JsonObject], Sequence[JsonObject] | None], Awaitable[list[int] | None]]

# The content's first and last character must differ from the sentinel's, or the change looks smaller than it is.
_SENTINELS = ("~0~", "^1^", "|2|")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "observation",
          "function": "observation"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    role: str
    start: int  # tokens
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """A prompt whose messages have been found."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] | None
    ids: list[int]
    tool_span: _Span | None
    spans: tuple[_Span, ...]  # one per message


class SegmentFinder:
    """Finds segments of one prompt after another; a prompt that continues the one before costs only its new messages."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._last: _Located | None = None

    async def find(self, request: PlannedRequest, ids: list[int]) -> Segments | None:
        """Segments of the prompt with these `ids`; None where it cannot be told."""
        if request.segments is not None:
            return _given(request.segments, len(ids))
        if request.messages is None:
            return None
        if await self._tokenize(request.messages, request.tools) != ids:
            return None
        found = await self._located(request, ids)
        if found is None:
            return None
        self._last = found
        spans = [*found.spans, *([found.tool_span] if found.tool_span is not None else [])]
        return _tiled(spans, len(ids))

    async def _located(self, request: PlannedRequest, ids: list[int]) -> _Located | None:
        messages = request.messages or ()
        known = self._known(request, ids)
        tool_span = self._last.tool_span if known and self._last is not None else None
        if request.tools and tool_span is None:
            without = await self._tokenize(messages, None)
            if without is None:
                return None
            tool_span = _changed("tools", ids, without)
        spans = list(known)
        for at in range(len(known), len(messages)):
            span = await self._message(request, at, ids)
            if span is None:
                return None
            spans.append(span)
        return _Located(messages=messages, tools=request.tools, ids=ids, tool_span=tool_span, spans=tuple(spans))

    def _known(self, request: PlannedRequest, ids: list[int]) -> tuple[_Span, ...]:
        """Spans of the leading messages that this prompt shares with the last one, text and place."""
        last = self._last
        if last is None or last.tools != request.tools or (last.tool_span is None and request.tools):
            return ()
        shared = 0
        for old, new in zip(last.messages, request.messages or (), strict=False):
            if old is not new and old != new:
                break
            shared += 1
        end = max(
            (span.end for span in (*last.spans[:shared], *([last.tool_span] if last.tool_span else []))), default=0
        )
        return last.spans[:shared] if last.ids[:end] == ids[:end] else ()

    async def _message(self, request: PlannedRequest, at: int, ids: list[int]) -> _Span | None:
        messages = list(request.messages or ())
        message = messages[at]
        role = request.roles[at] if request.roles is not None else _ROLES.get(str(message.get("role")))
        content = message.get("content")
        if role is None or not isinstance(content, str) or not content:
            return None
        sentinel = next(text for text in _SENTINELS if text[0] not in (content[0], content[-1]))
        messages[at] = {**message, "content": sentinel}
        rendered = await self._tokenize(messages, request.tools)
        return None if rendered is None else _changed(role, ids, rendered)


def _changed(role: str, ids: list[int], other: list[int]) -> _Span:
    """Where `ids` differs from `other`, outside their common start and end."""
    most = min(len(ids), len(other))
    ours, theirs = np.asarray(ids), np.asarray(other)
    start = _agreeing(ours[:most], theirs[:most])
    behind = _agreeing(ours[::-1][: most - start], theirs[::-1][: most - start])
    return _Span(role=role, start=start, end=len(ids) - behind)


def _agreeing(ours: np.ndarray[tuple[int]], theirs: np.ndarray[tuple[int]]) -> int:
    """How many of the first elements are equal."""
    different = np.flatnonzero(ours != theirs)
    return int(different[0]) if len(different) else len(ours)


def _tiled(spans: list[_Span], tokens: int) -> Segments | None:
    """Segments that tile the prompt: the template's own tokens go to the message they introduce, so the last ones are a
    segment of the assistant, whose answer they begin."""
    ordered = sorted((span for span in spans if span.end > span.start), key=lambda span: span.start)
    if not ordered or any(a.end > b.start for a, b in itertools.pairwise(ordered)):
        return None
    if [span for span in spans if span.role != "tools" and span.end > span.start] != [
        s for s in ordered if s.role != "tools"
    ]:
        return None  # messages out of order: the template moves them
    starts, roles = [0, *(span.end for span in ordered)], [*(span.role for span in ordered), "assistant"]
    if starts[-1] >= tokens:
        starts.pop()
        roles.pop()
    return Segments(roles=tuple(roles), starts=tuple(starts))


def _given(segments: tuple[tuple[str, int], ...], tokens: int) -> Segments | None:
    """Segments that the plan knows, as (role, tokens)."""
    if sum(length for _, length in segments) != tokens or any(length <= 0 for _, length in segments):
        return None
    starts, at = [], 0
    for _, length in segments:
        starts.append(at)
        at += length
    return Segments(roles=tuple(role for role, _ in segments), starts=tuple(starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Prompts without segments, and the first reason."""

    unknown: int
    reason: str


async def find_segments(plans: Mapping[str, Plan], prompts: Sequence[Prompt], server: Server, model: str) -> Outcome:
    """Set `segments` of the prompts of the passes in `plans`, session by session; passes of one plan share them.

    Bounded in time: what is not found within BUDGET_S stays None.
    """
    deadline = time.monotonic() + BUDGET_S
    tokenize = _asking(server, model)
    finder, session = SegmentFinder(tokenize), ""
    planned = {(name, request.index): request for name, plan in plans.items() for request in plan.requests}
    found: dict[tuple[int, bytes], Segments | None] = {}
    unknown, reason = 0, ""
    for prompt in sorted(prompts, key=lambda item: _order(item, planned.get((item.pass_name, item.index)))):
        request = planned.get((prompt.pass_name, prompt.index))
        if request is None or (request.messages is None and request.segments is None):
            continue
        ids = prompt.ids[: prompt.prompt_tokens]
        key = (id(request), ids.tobytes())
        if key not in found and time.monotonic() < deadline:
            if request.session_id != session:
                finder, session = SegmentFinder(tokenize), request.session_id
            found[key] = await finder.find(request, ids.tolist())
        prompt.segments = found.get(key)
        if prompt.segments is None:
            unknown += 1
            reason = reason or (
                "the template and /tokenize do not fit together" if key in found else "it takes too long"
            )
    return Outcome(unknown=unknown, reason=reason)


def _order(prompt: Prompt, request: PlannedRequest | None) -> tuple[str, str, int]:
    return ("", "", 0) if request is None else (request.session_id, prompt.pass_name, request.turn)


def _asking(server: Server, model: str) -> Tokenize:
    async def tokenize(messages: Sequence[JsonObject], tools: Sequence[JsonObject] | None) -> list[int] | None:
        body: dict[str, Any] = {"model": model, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        answer = await server.ask("/tokenize", body, timeout_s=ASK_TIMEOUT_S)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return ids if isinstance(ids, list) else None

    return tokenize
