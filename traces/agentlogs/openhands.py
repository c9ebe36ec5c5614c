"""OpenHands: the events of a session (JSON list or lines), and resolver outputs (lines with a `history`).

An action of the agent carries the model's response with its usage; several actions and their observations may repeat
one response, so requests are counted by its id. Where no response is kept, actions are answers and tokens are estimated;
the system prompt is in neither, and missing from the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.transcript import Message, transcript_rows
from traces.agentlogs.values import listing, mapping, moment_ns, name, text_of, usage_of

_WORDS = ("thought", "content", "command", "code", "outputs", "final_thought")


class OpenHandsFormat:
    """See the module."""

    name = "openhands"

    def fits(self, head: Head) -> bool:
        """Whether records are events, or hold a history of such."""
        return any(_is_event(item) or any(_is_event(mapping(event)) for event in listing(item.get("history")))
                   for item in head.records)  # fmt: skip

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per response, or per action where there are no responses."""
        rows: list[dict[str, Any]] = []
        events: list[tuple[int, dict[str, Any]]] = []
        for line, record in records_of(head, reading):
            if isinstance(record.get("history"), list):
                told = [(line, event) for event in record["history"] if isinstance(event, dict)]
                session = f"{head.label}:{line}"
                rows += transcript_rows(list(_messages(told, reading)), reading, session=session)
            elif _is_event(record):
                events.append((line, record))
            else:
                reading.bad(head.path, line, "no event with an action or an observation")
        if events:
            rows += transcript_rows(list(_messages(events, reading)), reading, session=head.label)
        if any(row["token_source"] != RECORDED for row in rows):
            reading.note("OpenHands without recorded usage: the system prompt is not in the log nor in the counts")
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))


def _is_event(item: dict[str, Any]) -> bool:
    known = "action" in item or "observation" in item
    return known and ("source" in item or "args" in item or "extras" in item or bool(set(_WORDS) & item.keys()))


def _messages(events: list[tuple[int, dict[str, Any]]], reading: Reading) -> Iterator[Message]:
    """Messages in order; an action that repeats a response is part of its answer, which is counted already."""
    seen: set[str] = set()
    acted_ns = None
    for position, (line, event) in enumerate(events):
        if event.get("action") in ("change_agent_state", "null", "recall") or event.get("observation") in (
            "agent_state_changed", "null",
        ):  # fmt: skip
            continue
        when = moment_ns(event.get("timestamp"))
        if "observation" in event:
            ran = when - acted_ns if when is not None and acted_ns is not None and when >= acted_ns else None
            tokens = reading.measure.tokens(text_of(event.get("content")))
            yield Message(line=line, answer=False, tool=True, tokens=tokens, start_ns=when, tool_ns=ran)
            continue
        source = event.get("source", "user" if position == 0 else "agent")
        words = _words(event)
        if source != "agent":
            yield Message(line=line, answer=False, tool=False, tokens=reading.measure.tokens(words), start_ns=when)
            continue
        acted_ns = when
        response = mapping(mapping(event.get("tool_call_metadata")).get("model_response"))
        key = name(response.get("id"))
        if key is not None and key in seen:
            reading.repeated += 1
            continue
        if key is not None:
            seen.add(key)
        yield Message(
            line=line, answer=True, tool=None, tokens=reading.measure.tokens(words), usage=usage_of(response.get("usage")),
            start_ns=when, model=name(response.get("model")), message_id=key,
        )  # fmt: skip


def _words(event: dict[str, Any]) -> str:
    places = (event, mapping(event.get("args")))
    return "\n".join(text_of(place[key]) for place in places for key in _WORDS if place.get(key))
