"""One list of messages that only grew: every answer in it is a request whose prompt is all that stands before.

So a prompt needs no comparing: its start is the earlier prompt and answer, to the last message. What is not in the list
(tool definitions, what the chat template adds, reasoning that was dropped) is not in the counts either, unless the log
recorded usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from traces.agentlogs.base import Reading
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.values import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a list; `answer`: a model wrote it. Its text is measured and not kept."""

    line: int
    answer: bool
    tool: bool | None  # a tool's result; None where it cannot be told from a person's words
    tokens: int
    usage: Usage | None = None
    start_ns: int | None = None  # when the message came
    model: str | None = None
    message_id: str | None = None
    tool_ns: int | None = None  # that the tool ran


def transcript_rows(messages: Sequence[Message], reading: Reading, *, session: str) -> list[dict[str, Any]]:
    """A row per answer, for base.frame_of."""
    rows: list[dict[str, Any]] = []
    before = since = 0
    tool: bool | None = False
    tool_ns: int | None = None
    for message in messages:
        if not message.answer:
            before += message.tokens
            tool = True if message.tool or tool is True else message.tool if since == 0 else tool
            tool_ns = message.tool_ns if tool_ns is None else tool_ns + (message.tool_ns or 0)
            since += 1
            continue
        usage = message.usage
        rows.append({
            "line": message.line, "session": session, "start_ns": message.start_ns, "model": message.model,
            "input_tokens": usage.input_tokens if usage else before,
            "output_tokens": usage.output_tokens if usage else message.tokens,
            "cached_tokens": usage.cached_tokens if usage else None, "message_id": message.message_id,
            "tool_step": tool if rows else False, "tool_wait_ns": tool_ns,
            "token_source": RECORDED if usage else reading.measure.source,
        })  # fmt: skip
        before += message.tokens
        since, tool, tool_ns = 0, False, None
    return rows
