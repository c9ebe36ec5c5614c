"""Codex rollout files: JSON lines with a `payload`; a `token_count` event follows each request.

`last_token_usage` is the request's own; input_tokens include the cached ones. An event that repeats the totals of the
one before tells of rate limits, not of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.values import mapping, moment_ns, name, usage_of

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output"}
)
_ANSWERS = frozenset({"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"})


class CodexFormat:
    """See the module."""

    name = "codex"

    def fits(self, head: Head) -> bool:
        """Whether records carry a payload under the known types."""
        return any(item.get("type") in _TYPES and isinstance(item.get("payload"), dict) for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per token count."""
        state = _Session(session=head.label)
        rows: list[dict[str, Any]] = []
        for line, record in records_of(head, reading):
            payload, kind = record.get("payload"), record.get("type")
            if not isinstance(payload, dict) or not isinstance(kind, str):
                reading.bad(head.path, line, "a record without a payload")
                continue
            when = moment_ns(record.get("timestamp"))
            if payload.get("type") == "token_count":
                row = state.request(payload, when)
                if row == {}:
                    reading.repeated += 1
                elif row is None and payload.get("info") is not None:
                    reading.bad(head.path, line, "a token count without usage")
                elif row:
                    rows.append({**row, "line": line})
            else:
                state.record(kind, payload, when)
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))


class _Session:
    """What came since the last request."""

    def __init__(self, session: str) -> None:
        self.session, self.parent, self.model = session, None, None
        self.totals: object = None
        self.asked_ns: int | None = None
        self.answered_ns: int | None = None
        self.begun = self.tool = self.compaction = False

    session: str
    parent: str | None
    model: str | None

    def record(self, kind: str, payload: dict[str, Any], when: int | None) -> None:
        """Any record but a token count."""
        if kind == "session_meta":
            self.session = name(payload.get("id")) or self.session
            self.parent = name(payload.get("forked_from_id")) or name(payload.get("parent_thread_id"))
        elif kind == "turn_context":
            self.model = name(payload.get("model")) or self.model
        elif kind == "compacted" or payload.get("type") in ("compacted", "context_compacted"):
            self.compaction = True
        elif kind == "response_item":
            self._item(payload, when)

    def _item(self, payload: dict[str, Any], when: int | None) -> None:
        what = payload.get("type")
        if what in _OUTPUTS:
            self.tool, self.asked_ns = True, when
        elif what in _ANSWERS or (what == "message" and payload.get("role") == "assistant"):
            self.begun = True
        elif not self.begun:
            self.asked_ns = when

    def request(self, payload: dict[str, Any], when: int | None) -> dict[str, Any] | None:
        """A row, {} for a repetition, None for an event without usage."""
        info = mapping(payload.get("info"))
        usage = usage_of({"input_tokens_details": {}, **mapping(info.get("last_token_usage"))})
        if usage is None or usage.input_tokens == 0:
            return None
        totals = info.get("total_token_usage")
        if totals is not None and totals == self.totals:
            return {}
        self.totals = totals
        asked = self.asked_ns if self.asked_ns is not None else when
        gap = None if asked is None or self.answered_ns is None or not self.tool else asked - self.answered_ns
        row = {
            "session": self.session, "parent_session": self.parent, "start_ns": asked,
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens, "model": self.model, "tool_step": self.tool,
            "tool_wait_ns": None if gap is None else max(0, gap), "compaction": self.compaction,
            "api_ns": when - asked if when is not None and asked is not None and when >= asked else None,
            "token_source": RECORDED,
        }  # fmt: skip
        self.answered_ns, self.asked_ns = when, None
        self.begun = self.tool = self.compaction = False
        return row
