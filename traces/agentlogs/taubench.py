"""tau-bench results: a JSON list of attempts, each with its list of messages (`traj`).

No usage is kept. Tool definitions were sent with every request and are not in the log: estimated prompts lack them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.agentlogs.base import Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.transcript import Message, transcript_rows
from traces.agentlogs.values import message_text, name


class TauBenchFormat:
    """See the module."""

    name = "tau-bench"

    def fits(self, head: Head) -> bool:
        """Whether an attempt has a task and a traj."""
        return any("task_id" in item and isinstance(item.get("traj"), list) for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per answer; a session per attempt."""
        rows: list[dict[str, Any]] = []
        for number, attempt in records_of(head, reading):
            if not isinstance(attempt.get("traj"), list):
                reading.bad(head.path, number, "an attempt without traj")
                continue
            trial = name(attempt.get("trial"))
            session = f"task {name(attempt.get('task_id')) or number}" + (f" trial {trial}" if trial else "")
            messages = list(_messages(head, reading, number, attempt["traj"]))
            rows += transcript_rows(messages, reading, session=session)
        reading.note("tau-bench keeps no usage and no tool definitions: prompts are estimated without those")
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))


def _messages(head: Head, reading: Reading, number: int, items: list[Any]) -> Iterator[Message]:
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            reading.bad(head.path, number, "a message without a role")
            continue
        yield Message(
            line=number, answer=item["role"] == "assistant", tool=item["role"] == "tool",
            tokens=reading.measure.tokens(message_text(item)),
        )  # fmt: skip
