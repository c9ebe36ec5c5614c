"""The prompt of one turn of an agent's loop, with what the options plant in it.

Each fault is one that loops are found with: text that differs in every call at the front of the system prompt, tools in
another order, an early tool result that is edited, a context that is compacted, thoughts that are left out of the history,
documents retrieved anew at the front, sub-agents that do not start from their parent's context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from profiler.workloads.request import JsonObject
from profiler.workloads.text import stream, words

if TYPE_CHECKING:
    from profiler.workloads.agent import AgentOptions

Labelled: TypeAlias = tuple[JsonObject, str]  # a message and what it is, as prompt_segments.role

_KEPT_TURNS = 2  # that a compaction leaves as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a turn leaves in the history."""

    answer: str
    observation: str
    call_id: str
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a session's prompts are made from. `path` names its random stream; `parent` gives a sub-agent its start."""

    options: AgentOptions
    seed: int
    path: tuple[object, ...]
    system: str
    tools: tuple[JsonObject, ...]
    parent: Context | None = None

    def prompt(self, task: str, history: Sequence[Turn], turn: int, answers: int) -> list[Labelled]:
        """Messages of turn `turn`; `answers` of sub-agents come into its last observation."""
        options = self.options
        opening = [*self._opening(turn), *self._inherited(), ({"role": "user", "content": task}, "user")]
        told = self._history(history, turn, answers)
        used = sum(len(message["content"]) for message, _ in (*opening, *told))
        if options.compact_tokens and used > options.compact_tokens and len(history) > _KEPT_TURNS:
            summary = words(stream(self.seed, "summary", *self.path, turn), max(1, options.compact_tokens // 8))
            told = [({"role": "user", "content": summary}, "user"), *told[-2 * _KEPT_TURNS :]]
        if options.documents and options.documents_at == "tail":
            told += self._documents(turn)
        return opening + told

    def _opening(self, turn: int) -> list[Labelled]:
        options, system = self.options, self.system
        if options.timestamp != "no":
            stamp = _stamp(self.path, turn)
            system = f"{stamp} {system}" if options.timestamp == "head" else f"{system} {stamp}"
        opening: list[Labelled] = [({"role": "system", "content": system}, "system")]
        if options.documents and options.documents_at == "head":
            opening += self._documents(turn)
        return opening

    def _documents(self, turn: int) -> list[Labelled]:
        random = stream(self.seed, "documents", *self.path, turn)
        return [
            ({"role": "user", "content": words(random, self.options.document_tokens)}, "document")
            for _ in range(self.options.documents)
        ]

    def _inherited(self) -> list[Labelled]:
        """The parent's first prompt, behind its system prompt: its task."""
        if self.parent is None:
            return []
        random = stream(self.seed, "agent", *self.parent.path)
        return [({"role": "user", "content": words(random, self.options.task_tokens)}, "user")]

    def _history(self, history: Sequence[Turn], turn: int, answers: int) -> list[Labelled]:
        options = self.options
        messages: list[Labelled] = []
        for number, past in enumerate(history):
            thought = f"{past.reasoning} " if past.reasoning and number == len(history) - 1 else ""
            messages.append(({"role": "assistant", "content": thought + past.answer}, "assistant"))
            text = past.observation
            if number == 0 and options.edit_at and turn >= options.edit_at:
                text = _edited(text, turn)
            if answers and number == len(history) - 1:
                told = [
                    words(stream(self.seed, "told", *self.path, child), options.output_tokens)
                    for child in range(answers)
                ]
                text = " ".join([text, *told])
            observation: JsonObject = {"role": options.observation_role, "content": text}
            if options.observation_role == "tool":
                observation = {"role": "tool", "tool_call_id": past.call_id, "content": text}
            messages.append((observation, "observation"))
        return messages


def volatile(tools: tuple[JsonObject, ...], *, shift: int) -> tuple[JsonObject, ...] | None:
    """The tools in an order that every call begins elsewhere."""
    if not tools:
        return None
    at = shift % len(tools)
    return tools[at:] + tools[:at]


def _stamp(path: Sequence[object], turn: int) -> str:
    """A time of day that differs in every call of every session, from its first digit on."""
    number = sum(int(part) if isinstance(part, int) else 7 for part in path) * 1009 + turn * 37
    return f"{number % 10}{number % 24:02d}:{number % 60:02d}:{(number * 7) % 60:02d}.{number % 1000:03d}"


def _edited(text: str, turn: int) -> str:
    """The text with its middle word replaced by one of the same length, another in every turn."""
    middle = text.find(" ", len(text) // 2) + 1 or len(text) // 2
    letter = "abcdefghij"[turn % 10]
    return f"{text[:middle]}{letter}{text[middle + 1 :]}"
