"""Logs of OpenAI's and Anthropic's chat interfaces: JSON lines of a request with its response.

Found in a record, wherever gateways put them: the request (`request`, `body`, `kwargs`, or the record itself) with
`messages` (Responses API: `input`), `system` and `tools`; the response (`response`, `output`, or the record itself)
with `usage` and the answer. A record that has messages only is a conversation: every answer in it is a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.prompts import Prompts
from traces.agentlogs.transcript import Message, transcript_rows
from traces.agentlogs.values import Usage, listing, mapping, message_text, moment_ns, name, span_ns, text_of, usage_of
from traces.clock import NS_PER_MS

_REQUESTS = ("request", "body", "request_body", "kwargs", "params", "input")
_RESPONSES = ("response", "response_body", "output", "completion", "result")
_SESSIONS = ("session_id", "conversation_id", "thread_id", "user")
_TIMES = ("timestamp", "start_time", "startTime", "time", "created_at", "created")
_PROMPT_KEYS = ("messages", "input", "prompt")


class ChatFormat:
    """See the module."""

    name = "chat"

    def fits(self, head: Head) -> bool:
        """Whether a record holds messages with roles."""
        return any(_request(item) is not None for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """Batches of requests with their prompts' parts, and one of conversations."""
        prompts = Prompts(head, self.name, reading)
        spoken: list[dict[str, Any]] = []
        for line, record in records_of(head, reading):
            request = _request(record)
            if request is None:
                reading.bad(head.path, line, "no messages in this record")
                continue
            response, usage = _response(record, request)
            if usage is None and response is None:
                messages = list(_conversation(request, reading, line))
                session = _session(record, request) or f"conversation {line}"
                rows = transcript_rows(messages, reading, session=session)
                if not rows:
                    reading.bad(head.path, line, "neither a response nor an answer among the messages")
                spoken += rows
                continue
            key = name(mapping(response).get("id"))
            if key is not None and ("", key) in reading.counted:
                reading.repeated += 1
                continue
            if key is not None:
                reading.counted.add(("", key))
            facts = _facts(record, request, mapping(response))
            prompts.add(line, _parts(request), _answer(mapping(response)), usage, {**facts, "message_id": key})
            if prompts.full:
                yield prompts.batch()
        if spoken:
            yield Batch(path=head.path, format=self.name, requests=frame_of(spoken))
        if prompts.count:
            yield prompts.batch()


def _has_messages(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    for key in _PROMPT_KEYS:
        messages = value.get(key)
        if isinstance(messages, list) and any(isinstance(item, dict) and "role" in item for item in messages):
            return True
    return isinstance(value.get("input"), str) and "model" in value


def _request(record: dict[str, Any]) -> dict[str, Any] | None:
    if _has_messages(record):
        return record
    return next((record[key] for key in _REQUESTS if _has_messages(record.get(key))), None)


def _response(record: dict[str, Any], request: dict[str, Any]) -> tuple[dict[str, Any] | None, Usage | None]:
    """The response with its usage; (None, None) where the record has none."""
    found = next((record[key] for key in _RESPONSES if isinstance(record.get(key), dict)), None)
    if found is request:
        found = None
    if found is not None and isinstance(found.get("body"), dict):
        found = found["body"]
    if found is None and ("choices" in record or "usage" in record):
        found = record
    if found is None:
        return None, None
    return found, usage_of(found.get("usage")) or usage_of(record.get("usage"))


def _parts(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) of the prompt in the order in which a template writes it: tools and system first."""
    tools = listing(request.get("tools")) or listing(request.get("functions"))
    if tools:
        yield "tools", text_of({"tools": tools})
    for key in ("system", "instructions"):
        if request.get(key):
            yield "system", text_of(request[key])
    for message in _messages(request):
        yield from _message_parts(message)


def _messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    for key in _PROMPT_KEYS:
        if isinstance(request.get(key), list):
            return [item for item in request[key] if isinstance(item, dict)]
    return [{"role": "user", "content": request.get("input")}]


def _message_parts(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Anthropic puts tool results into user messages: those are a tool's."""
    kind = message.get("type")
    if kind in ("function_call_output", "custom_tool_call_output"):
        yield "tool", text_of(message.get("output"))
        return
    if kind in ("function_call", "custom_tool_call"):
        yield "assistant", f"{message.get('name', '')}{text_of(message.get('arguments', message.get('input')))}"
        return
    role = message.get("role")
    content = message.get("content")
    if role == "user" and isinstance(content, list):
        for part in content:
            tool = isinstance(part, dict) and part.get("type") == "tool_result"
            yield ("tool" if tool else "user"), text_of([part])
        return
    yield (_ROLE.get(role, "user") if isinstance(role, str) else "user"), message_text(message)


_ROLE = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool", "ipython": "tool",
}  # fmt: skip


def _answer(response: dict[str, Any]) -> list[str]:
    """Texts of the answer as they come back in a later prompt: one per message."""
    choices = listing(response.get("choices"))
    if choices:
        return [message_text(mapping(mapping(choices[0]).get("message")))]
    if isinstance(response.get("output"), list):
        return [text for item in response["output"] for _, text in _message_parts(mapping(item))]
    if "content" in response:
        return [message_text(response)]
    return []


def _facts(record: dict[str, Any], request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    start = next((when for key in _TIMES if (when := moment_ns(record.get(key))) is not None), None)
    took = next(
        (span for key in ("latency_ms", "duration_ms", "response_time_ms")
         if (span := span_ns(record.get(key), NS_PER_MS)) is not None), None,
    )  # fmt: skip
    if start is None and (ended := moment_ns(response.get("created"))) is not None:
        start = ended
    return {
        "session": _session(record, request),
        "start_ns": start,
        "api_ns": took,
        "model": name(request.get("model")) or name(response.get("model")),
    }


def _session(record: dict[str, Any], request: dict[str, Any]) -> str | None:
    places = [record, request, mapping(record.get("metadata")), mapping(request.get("metadata"))]
    found = [name(place.get(key)) for place in places for key in _SESSIONS]
    headers = {str(key).lower(): value for key, value in mapping(record.get("headers")).items()}
    found += [name(headers.get(key)) for key in ("x-session-id", "session-id", "session_id")]
    return next((item for item in found if item is not None), None)


def _conversation(request: dict[str, Any], reading: Reading, line: int) -> Iterator[Message]:
    """Messages of a record without a response."""
    for role, text in _parts(request):
        yield Message(line=line, answer=role == "assistant", tool=role == "tool", tokens=reading.measure.tokens(text))
