"""Logs of conversations with their text: ShareGPT files and OpenAI chat JSON lines.

The text stays in the file: of a message only its length is taken, one token per 4 bytes of UTF-8 where the log has no
token counts. An answer of the model makes a request of all that stands before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from traces.requestlogs.base import LogOptions, RequestLogFrame, settle
from traces.requestlogs.chat_times import moment_ns
from traces.requestlogs.json_entries import Json, json_entries

BYTES_PER_TOKEN = 4
_ESTIMATED = f"token counts are estimated from text, one per {BYTES_PER_TOKEN} bytes, where the log has none"
_ROLES = {"gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "human": "user"}


@dataclass(slots=True)
class _Rows:
    """Columns of the frame so far."""

    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: [] for name in ("line", "arrival_ns", "session_id", "turn", "input_tokens", "output_tokens",
                                  "prefix_tokens", "think_ns", "problem")
        }
    )  # fmt: skip

    def add(self, **values: Any) -> None:
        for name, column in self.columns.items():
            column.append(values.get(name))

    def frame(self) -> pl.DataFrame:
        text = {"session_id", "problem"}
        return pl.DataFrame(
            self.columns, schema={name: pl.String() if name in text else pl.Int64() for name in self.columns}
        )


class ShareGptFormat:
    """`[{"id": …, "conversations": [{"from": "human", "value": …}, …]}, …]`, as one array or as JSON lines."""

    name = "sharegpt"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the beginning has the key."""
        return head.lstrip()[:1] in (b"[", b"{") and b'"conversations"' in head

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per answer; the turns of a conversation are a session. Raises UnreadableInput."""
        rows = _Rows()
        for number, (line, entry) in enumerate(json_entries(path)):
            if isinstance(entry, str):
                rows.add(line=line, problem=entry)
                continue
            messages = _messages(entry.get("conversations"), "from", "value")
            if messages is None:
                rows.add(line=line, problem="conversations is not a list of objects with from and value")
            else:
                _conversation(rows, line, f"chat-{number}", messages)
        notes = (_ESTIMATED, "the log has no times: conversations begin at once, their turns follow each other")
        return settle(rows.frame(), path=path, log_format=self.name, block_tokens=None, epoch=False, options=options,
                      notes=notes, closed=True)  # fmt: skip


class OpenAiFormat:
    """JSON lines with `messages`, at the top or in `body` (a batch file) or `request` (a log).

    Where there are, `usage` (at the top, in `response` or in its `body`) gives the token counts, `max_tokens` or
    `max_completion_tokens` the output of a request without an answer, `timestamp`, `created` or `created_at` the time
    (seconds, milliseconds or ISO 8601), `session_id` or `conversation_id` the session.
    """

    name = "openai_chat"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the beginning is an object with the key."""
        return head.lstrip()[:1] == b"{" and b'"messages"' in head

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per line. Raises UnreadableInput."""
        rows, before = _Rows(), dict[str, list[tuple[str, int]]]()
        timed = untimed = 0
        for number, (line, entry) in enumerate(json_entries(path)):
            problem = entry if isinstance(entry, str) else _exchange(rows, line, number, entry, before)
            if problem is not None:
                rows.add(line=line, problem=problem)
            elif rows.columns["arrival_ns"][-1] is None:
                untimed += 1
            else:
                timed += 1
        frame, notes = rows.frame(), [_ESTIMATED]
        if untimed:
            notes.append(f"{untimed:,} requests have no time and begin with the log")
            frame = frame.with_columns(pl.col("arrival_ns").fill_null(pl.col("arrival_ns").min()).fill_null(0))
        frame = frame.with_columns(_turns(frame))
        return settle(frame, path=path, log_format=self.name, block_tokens=None, epoch=timed > 0, options=options,
                      notes=tuple(notes))  # fmt: skip


def _turns(frame: pl.DataFrame) -> pl.Series:
    good = pl.col("problem").is_null()
    turn = pl.when(good).then(pl.col("arrival_ns")).rank("ordinal").over("session_id").cast(pl.Int64) - 1
    return frame.select(pl.when(good).then(turn).alias("turn"))["turn"]


def _conversation(rows: _Rows, line: int, session: str, messages: list[tuple[str, int]]) -> None:
    """A row for each answer that has something before it."""
    context = turn = prefix = 0
    for role, tokens in messages:
        if role == "assistant" and context:
            rows.add(
                line=line, arrival_ns=0 if turn == 0 else None, session_id=session, turn=turn, input_tokens=context,
                output_tokens=tokens, prefix_tokens=prefix,
            )  # fmt: skip
            turn += 1
            prefix = context + tokens
        context += tokens
    if turn == 0:
        rows.add(line=line, problem="no answer of the model behind a message with text")


def _exchange(rows: _Rows, line: int, number: int, entry: Json, before: dict[str, list[tuple[str, int]]]) -> str | None:
    """Add the row of one line, or say what is wrong with it."""
    body = next((entry[key] for key in ("body", "request") if isinstance(entry.get(key), dict)), entry)
    given = _messages(body.get("messages"), "role", "content")
    if given is None:
        return "messages is not a list of objects with a role"
    prompt, answer = (given[:-1], given[-1][1]) if given and given[-1][0] == "assistant" else (given, None)
    usage = _usage(entry)
    tokens = _count(usage.get("prompt_tokens"), 1) or sum(length for _, length in prompt)
    output = _count(usage.get("completion_tokens"), 0)
    for told in (answer, _count(body.get("max_completion_tokens"), 1), _count(body.get("max_tokens"), 1)):
        output = told if output is None else output
    if not tokens:
        return "the messages have no text"
    if output is None:
        return "no answer, usage or max_tokens tells the length of the output"
    name = next((entry[key] for key in ("session_id", "conversation_id") if isinstance(entry.get(key), str)), None)
    session = name if name else f"chat-{number}"
    rows.add(
        line=line, arrival_ns=moment_ns(entry), session_id=session, input_tokens=tokens, output_tokens=output,
        prefix_tokens=min(tokens, _equal_tokens(before.get(session, []), prompt)),
    )  # fmt: skip
    if name:
        before[session] = given
    return None


def _equal_tokens(before: list[tuple[str, int]], prompt: list[tuple[str, int]]) -> int:
    """Tokens of the leading messages that are of equal role and length in both."""
    total = 0
    for one, other in zip(before, prompt, strict=False):
        if one != other:
            break
        total += one[1]
    return total


def _usage(entry: Json) -> Json:
    response = entry.get("response")
    inner = response.get("body") if isinstance(response, dict) else None
    for holder in (entry, response, inner):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            usage: Json = holder["usage"]
            return usage
    return {}


def _count(value: object, least: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 40 else None


def _messages(value: object, role_key: str, text_key: str) -> list[tuple[str, int]] | None:
    """(role, tokens) of each message; None where `value` is no list of messages."""
    if not isinstance(value, list):
        return None
    found = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get(role_key), str):
            return None
        role = item[role_key].lower()
        found.append((_ROLES.get(role, role), _tokens(item.get(text_key)) + _tokens(item.get("tool_calls"))))
    return found


def _tokens(content: object) -> int:
    """Of a text, or of the texts in a list of parts."""
    if content is None:
        return 0
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
