"""Single values of untrusted JSON: whole numbers, times, texts, usage."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from traces.agentlogs.base import MAX_TOKENS
from traces.clock import MOST_NS, NS_PER_MS, NS_PER_S

_MILLISECONDS_FROM = 1e11  # seconds since the epoch beyond this would be the year 5138
_NAME_CHARS = 200
_LONGEST_NS = 10**17  # 3 years
_DEEPEST = 40  # lists of parts within parts; what lies deeper is not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request as its provider counted them. `input_tokens` includes what was cached."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None


def whole(value: object) -> int | None:
    """A count of tokens; None where `value` is none that can be believed."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value.is_integer() else None
    return value if isinstance(value, int) and 0 <= value <= MAX_TOKENS else None


def name(value: object) -> str | None:
    """An id or a name, shortened; None where it is none."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return str(value)
    if not isinstance(value, str) or not value:
        return None
    return value[:_NAME_CHARS].encode("utf-8", "replace").decode()


def mapping(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: object) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def moment_ns(value: object) -> int | None:
    """Nanoseconds since the epoch of an ISO time (without an offset: UTC) or of a number of s or ms."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return None
        if not math.isfinite(number) or number < 0:
            return None
        if number >= _MILLISECONDS_FROM:
            return _bounded(number * NS_PER_MS)
        return _bounded(number * NS_PER_S)
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        when = datetime.fromisoformat(value)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        since = when - datetime.fromtimestamp(0, UTC)
    except (ValueError, OverflowError):
        return None
    return _bounded(((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000)


def span_ns(value: object, unit_ns: int) -> int | None:
    """A length of time of `value` times `unit_ns`; None where it is none, or of years."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return round(number * unit_ns) if 0 <= number * unit_ns <= _LONGEST_NS else None


def _bounded(ns: float) -> int | None:
    return round(ns) if -MOST_NS <= ns <= MOST_NS else None


def text_of(value: object, depth: int = 0) -> str:
    """The text of a message's content: a string, a list of parts, or anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None or depth > _DEEPEST:
        return ""
    if isinstance(value, list):
        return "".join(_part(part, depth + 1) for part in value)
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        return ""


def _part(part: object, depth: int) -> str:
    if isinstance(part, dict):
        for key in ("text", "thinking", "content"):
            if isinstance(part.get(key), (str, list)):
                return text_of(part[key], depth)
        if "input" in part or "arguments" in part:
            called = part.get("name")
            return (
                f"{called if isinstance(called, str) else ''}{text_of(part.get('input', part.get('arguments')), depth)}"
            )
    return text_of(part, depth)


def message_text(message: dict[str, Any]) -> str:
    """Everything of a chat message that becomes part of a prompt: content, reasoning, tool calls."""
    found = text_of(message.get("content"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    found += reasoning if isinstance(reasoning, str) else ""
    for call in listing(message.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        called = function.get("name")
        found += f"{called if isinstance(called, str) else ''}{text_of(function.get('arguments'))}"
    return found


def usage_of(value: object) -> Usage | None:
    """OpenAI's or Anthropic's usage; None where it is none.

    OpenAI's prompt_tokens (input_tokens with details) include the cached ones; Anthropic's input_tokens exclude both
    what was read from the cache and what was written to it. Where both spellings stand side by side (gateways that
    translate), prompt_tokens is taken, which they fill in OpenAI's sense.
    """
    usage = mapping(value)
    output = whole(usage.get("completion_tokens", usage.get("output_tokens")))
    if "prompt_tokens" in usage:
        details = mapping(usage.get("prompt_tokens_details"))
        return _included(whole(usage["prompt_tokens"]), output, details.get("cached_tokens"))
    if "input_tokens" not in usage:
        return None
    if "input_tokens_details" in usage or "cached_input_tokens" in usage:
        details = mapping(usage.get("input_tokens_details"))
        return _included(
            whole(usage["input_tokens"]), output, usage.get("cached_input_tokens", details.get("cached_tokens"))
        )
    fresh = whole(usage["input_tokens"])
    if fresh is None or output is None:
        return None
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    cached = whole(read)
    if (read is not None and cached is None) or (written is not None and whole(written) is None):
        return None
    total = fresh + (cached or 0) + (whole(written) or 0)
    return Usage(input_tokens=total, output_tokens=output, cached_tokens=cached) if total <= MAX_TOKENS else None


def _included(total: int | None, output: int | None, cached: object) -> Usage | None:
    """A cached count that is larger than the prompt cannot be one of it."""
    if total is None or output is None:
        return None
    part = whole(cached)
    return Usage(input_tokens=total, output_tokens=output, cached_tokens=None if part is None or part > total else part)
