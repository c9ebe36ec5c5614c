"""The values a workload is made of: planned requests and the plan that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]  # a message or a tool definition, in the form of the OpenAI API


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to send. Exactly one of `messages`, `prompt` and `prompt_token_ids` is set.

    The requests of a session are sent one after another in the order of `turn`: turn k+1 is due tool_wait_ns +
    think_ns of turn k after turn k has finished. `arrival_offset_ns` counts from the start of the pass; where it is
    set the request is due no earlier than that. Without `after_previous` it is due at that time, whatever has become of
    the turn before: an open loop.
    """

    index: int  # position in the plan, from 0
    session_id: str
    parent_session_id: str | None = None  # the session that spawned this one (sub-agents)
    turn: int = 0  # from 0
    arrival_offset_ns: int | None = None  # NULL: due as soon as the previous turn allows
    after_previous: bool = True  # only when the session's turn before has ended
    messages: tuple[JsonObject, ...] | None = None  # /v1/chat/completions
    tools: tuple[JsonObject, ...] | None = None  # only beside messages
    prompt: str | None = None  # /v1/completions
    prompt_token_ids: tuple[int, ...] | None = None  # /v1/completions, past any tokenizer
    # What the parts of the prompt are, where the messages' own roles do not say it (see prompt_segments.role):
    roles: tuple[str, ...] | None = None  # of each message
    segments: tuple[tuple[str, int], ...] | None = None  # (role, tokens), which tile prompt_token_ids
    max_tokens: int
    tool_wait_ns: int = 0  # a tool runs this long after the turn
    think_ns: int = 0  # and a person reads this long
    after: tuple[int, ...] = ()  # indexes of requests that must have ended first, in whatever way


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A workload, resolved: `spec` names every option, so it and `seed` make this plan again."""

    spec: str
    seed: int
    requests: tuple[PlannedRequest, ...]
    notes: tuple[str, ...] = ()  # what was cut or skipped on the way; not kept in the plan's file

    @property
    def n_requests(self) -> int:
        """Requests in the plan."""
        return len(self.requests)

    @property
    def sessions(self) -> tuple[tuple[PlannedRequest, ...], ...]:
        """The requests of each session in the order of their turns; sessions in the order of their first request."""
        grouped: dict[str, list[PlannedRequest]] = {}
        for request in self.requests:
            grouped.setdefault(request.session_id, []).append(request)
        return tuple(tuple(sorted(turns, key=lambda request: request.turn)) for turns in grouped.values())

    @property
    def chains(self) -> tuple[tuple[PlannedRequest, ...], ...]:
        """What has to be sent one after another: the sessions, cut before every request that waits for nothing."""
        found: list[list[PlannedRequest]] = []
        for session in self.sessions:
            for place, request in enumerate(session):
                if place == 0 or not request.after_previous:
                    found.append([])
                found[-1].append(request)
        return tuple(tuple(chain) for chain in found)
