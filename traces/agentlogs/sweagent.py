"""SWE-agent .traj and mini-swe-agent .traj.json: a JSON document with the messages of one attempt.

SWE-agent's steps may show the whole prompt (`query`, or `messages` with the answer behind it): then prompts are compared
part by part, for history processors rewrite them. Otherwise `history` is one list that grew. Demonstrations stand in it
as the first user message. mini-swe-agent keeps one list, since version 1 with the provider's usage in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.prompts import Prompts
from traces.agentlogs.transcript import Message, transcript_rows
from traces.agentlogs.values import listing, mapping, message_text, moment_ns, name, span_ns, usage_of
from traces.clock import NS_PER_S

_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class SweAgentFormat:
    """SWE-agent."""

    name = "swe-agent"

    def fits(self, head: Head) -> bool:
        """Whether the document has a trajectory or a history of messages with an agent's name."""
        document = mapping(head.document)
        steps, history = listing(document.get("trajectory")), listing(document.get("history"))
        return any("response" in mapping(step) for step in steps) or any(
            "role" in mapping(item) and ("agent" in item or "message_type" in item) for item in history
        )

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per answer."""
        document = mapping(head.document)
        session = head.label
        steps = [mapping(step) for step in listing(document.get("trajectory"))]
        if steps and all(_messages(step) for step in steps):
            yield from self._steps(head, reading, steps, session)
            return
        waits = [span_ns(step.get("execution_time"), NS_PER_S) for step in steps]
        messages = list(_history(head, reading, document, waits))
        yield Batch(
            path=head.path, format=self.name, requests=frame_of(transcript_rows(messages, reading, session=session))
        )

    def _steps(self, head: Head, reading: Reading, steps: list[dict[str, Any]], session: str) -> Iterator[Batch]:
        prompts = Prompts(head, self.name, reading)
        waited = None
        for number, step in enumerate(steps, 1):
            messages = _messages(step)
            parts = [(_role(item), message_text(item)) for item in messages]
            answer = _answer_of(step)
            prompts.add(number, parts, [answer], None, {
                "session": session, "tool_step": number > 1, "tool_wait_ns": waited, "message_id": f"step {number}",
            })  # fmt: skip
            waited = span_ns(step.get("execution_time"), NS_PER_S)
            if prompts.full:
                yield prompts.batch()
        if prompts.count:
            yield prompts.batch()


def _role(item: dict[str, Any]) -> str:
    """An old SWE-agent gives observations as a user's words; those in the middle are a tool's."""
    role = item.get("role")
    return _ROLES.get(role, "user") if isinstance(role, str) else "user"


def _messages(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt of a step; in `messages` the answer and its result stand behind it."""
    query = [item for item in listing(step.get("query")) if isinstance(item, dict)]
    if query:
        return query
    messages = [item for item in listing(step.get("messages")) if isinstance(item, dict)]
    last = max((at for at, item in enumerate(messages) if item.get("role") == "assistant"), default=None)
    if last is not None and messages[last].get("content") == step.get("response"):
        return messages[:last]
    return messages


def _answer_of(step: dict[str, Any]) -> str:
    """As it comes back in the next prompt: with its tool calls, if the step shows them."""
    messages = [item for item in listing(step.get("messages")) if isinstance(item, dict)]
    last = next((item for item in reversed(messages) if item.get("role") == "assistant"), None)
    if last is not None and last.get("content") == step.get("response"):
        return message_text(last)
    return message_text({"content": step.get("response"), "tool_calls": step.get("tool_calls")})


def _history(head: Head, reading: Reading, document: dict[str, Any], waits: list[int | None]) -> Iterator[Message]:
    answers = 0
    for number, item in enumerate(listing(document.get("history")), 1):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            reading.bad(head.path, number, "a message without a role")
            continue
        answer = item["role"] == "assistant" and item.get("is_demo") is not True
        yield Message(
            line=number, answer=answer, tool=answers > 0 and not answer,
            tokens=reading.measure.tokens(message_text(item)),
            tool_ns=waits[answers - 1] if answers and not answer and answers <= len(waits) else None,
        )  # fmt: skip
        answers += answer


class MiniSweAgentFormat:
    """mini-swe-agent: a list of messages, or a document with one."""

    name = "mini-swe-agent"

    def fits(self, head: Head) -> bool:
        """Whether the document is a list of messages, or says mini-swe-agent."""
        document = head.document
        if isinstance(document, list):
            return bool(document) and all(
                isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item
                for item in document[:8]
            )
        known = mapping(document)
        kind = known.get("trajectory_format")
        return isinstance(known.get("messages"), list) and isinstance(kind, str) and kind.startswith("mini-swe-agent")

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per answer."""
        document = head.document
        items = document if isinstance(document, list) else listing(mapping(document).get("messages"))
        messages = list(self._read(head, reading, items))
        rows = transcript_rows(messages, reading, session=head.label)
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))

    def _read(self, head: Head, reading: Reading, items: list[Any]) -> Iterator[Message]:
        answers = 0
        for number, item in enumerate(items, 1):
            if not isinstance(item, dict) or not isinstance(item.get("role"), str):
                reading.bad(head.path, number, "a message without a role")
                continue
            answer = item["role"] == "assistant"
            extra = mapping(item.get("extra"))
            response = mapping(extra.get("response"))
            yield Message(
                line=number, answer=answer, tool=answers > 0 and not answer,
                tokens=reading.measure.tokens(message_text(item)), usage=usage_of(response.get("usage")),
                start_ns=moment_ns(extra.get("timestamp")), model=name(response.get("model")),
                message_id=name(response.get("id")),
            )  # fmt: skip
            answers += answer
