"""Claude Code session files: JSON lines of user, assistant, system and summary records.

An answer is written as one record per content block, and each repeats the usage of the whole: requests are counted by
message id, over all files of a session, since a resumed session copies what came before. `input_tokens` excludes what
was read from the cache and what was written to it. Sub-agents are sidechains: sessions of their own, with a parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.values import listing, mapping, moment_ns, name, usage_of

_TYPES = frozenset({"user", "assistant", "system", "summary"})


@dataclass(slots=True)
class _Thread:
    """What one session or sidechain had by now."""

    last_answer_ns: int | None = None
    tool: bool = False  # a tool's result came since the last answer
    arrived_ns: int | None = None  # when the newest input came
    tool_ns: int | None = None  # when the newest tool's result came
    compaction: bool = False
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # by message id, in order


class ClaudeCodeFormat:
    """See the module."""

    name = "claude-code"

    def fits(self, head: Head) -> bool:
        """Whether records are of the known types, with a session and a message."""
        return any(
            record.get("type") in _TYPES and "sessionId" in record and ("message" in record or "uuid" in record)
            for record in head.records
        )

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per message id."""
        threads: dict[tuple[str, bool, str], _Thread] = {}
        for line, record in records_of(head, reading):
            kind = record.get("type")
            session = name(record.get("sessionId"))
            if kind not in ("user", "assistant", "system") or session is None:
                if not isinstance(kind, str):
                    reading.bad(head.path, line, "a record without a type")
                continue
            side = record.get("isSidechain") is True
            agent = (name(record.get("agentId")) or "sidechain") if side else ""
            thread = threads.setdefault((session, side, agent), _Thread())
            if kind == "assistant":
                self._answer(head, reading, line, record, (session, agent), thread)
            else:
                _input(thread, record, kind)
        rows = [row for thread in threads.values() for row in thread.rows.values()]
        rows.sort(key=lambda row: row["line"])
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))

    def _answer(
        self, head: Head, reading: Reading, line: int, record: dict[str, Any], who: tuple[str, str], thread: _Thread
    ) -> None:
        message, when = mapping(record.get("message")), moment_ns(record.get("timestamp"))
        key = name(message.get("id")) or name(record.get("requestId")) or name(record.get("uuid")) or f"line {line}"
        usage = usage_of(message.get("usage"))
        if message.get("model") == "<synthetic>":
            return  # written by the client itself, no request
        known = thread.rows.get(key)
        if known is not None:
            reading.repeated += 1
            if usage is not None:  # an answer that was being streamed: the last count is the whole
                known["output_tokens"] = max(known["output_tokens"], usage.output_tokens)
            thread.last_answer_ns = when or thread.last_answer_ns
            _end(known, when)
            return
        if usage is None or usage.input_tokens == 0:
            reading.bad(head.path, line, "an answer without usage")
            return
        session, agent = who
        if (session, key) in reading.counted:
            reading.repeated += 1
            return
        reading.counted.add((session, key))
        asked = thread.arrived_ns if thread.arrived_ns is not None else when
        waited = None
        if thread.tool and thread.last_answer_ns is not None and thread.tool_ns is not None:
            waited = max(0, thread.tool_ns - thread.last_answer_ns)
        thread.rows[key] = {
            "line": line, "session": f"{session}/{agent}" if agent else session,
            "parent_session": session if agent else None, "start_ns": asked, "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens, "cached_tokens": usage.cached_tokens,
            "model": name(message.get("model")), "message_id": key, "tool_step": thread.tool,
            "tool_wait_ns": waited, "compaction": thread.compaction, "token_source": RECORDED,
        }  # fmt: skip
        _end(thread.rows[key], when)
        thread.tool, thread.arrived_ns, thread.tool_ns, thread.compaction = False, None, None, False
        thread.last_answer_ns = when


def _end(row: dict[str, Any], when: int | None) -> None:
    if when is not None and row["start_ns"] is not None and when >= row["start_ns"]:
        row["api_ns"] = when - row["start_ns"]


def _input(thread: _Thread, record: dict[str, Any], kind: str) -> None:
    if kind == "system":
        thread.compaction |= record.get("subtype") == "compact_boundary"
        return
    parts = listing(mapping(record.get("message")).get("content"))
    tool = any(mapping(part).get("type") == "tool_result" for part in parts)
    thread.tool |= tool
    thread.compaction |= record.get("isCompactSummary") is True
    when = moment_ns(record.get("timestamp"))
    if when is not None:
        thread.arrived_ns = when
        thread.tool_ns = when if tool else thread.tool_ns
