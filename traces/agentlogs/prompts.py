"""Prompts that a log shows in full, as units: pieces of 64 characters of each message, named by hashes.

A piece is about a usual cache block of 16 tokens. Pieces start anew with each message, so that a message which only
moved keeps its pieces. The prompt's recorded tokens are laid over them by their characters; the sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from traces.agentlogs.base import ROLES, Batch, Head, Ints, Reading, Units, frame_of
from traces.agentlogs.hashes import chained
from traces.agentlogs.measure import RECORDED, chunk_chars
from traces.agentlogs.values import Usage

_FULL_UNITS = 1 << 20
_FULL_ROWS = 4096


class Prompts:
    """Collects requests until a batch is full."""

    def __init__(self, head: Head, log_format: str, reading: Reading) -> None:
        self._head, self._format, self._reading = head, log_format, reading
        self._clear()

    def _clear(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._content: list[Ints] = []
        self._chain: list[Ints] = []
        self._tokens: list[Any] = []
        self._roles: list[Any] = []
        self._answers: list[Ints] = []
        self._units = 0

    @property
    def count(self) -> int:
        """Requests collected."""
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Whether it is time for a batch."""
        return self._units >= _FULL_UNITS or len(self._rows) >= _FULL_ROWS

    def add(
        self, line: int, parts: Iterable[tuple[str, str]], answer: list[str], usage: Usage | None, facts: dict[str, Any]
    ) -> None:
        """One request: (role, text) of its prompt, the texts of its answer, its usage if recorded."""
        measure = self._reading.measure
        hashes, chars, roles, tokens = [], [], [], 0
        last = ""
        for role, text in parts:
            pieces = measure.chunks(role, text)
            hashes.append(pieces)
            chars.append(chunk_chars(text))
            roles.append(np.full(len(pieces), ROLES.index(role), dtype=np.int8))
            if usage is None:
                tokens += measure.tokens(text)
            last = role
        total = usage.input_tokens if usage else tokens
        if not hashes or total == 0:
            self._reading.bad(self._head.path, line, "a prompt without text and without usage")
            return
        content = np.concatenate(hashes)
        self._content.append(content)
        self._chain.append(chained(content))
        self._tokens.append(_laid_over(total, np.concatenate(chars)))
        self._roles.append(np.concatenate(roles))
        empty = np.zeros(0, dtype=np.int64)
        self._answers.append(np.concatenate([empty, *(measure.chunks("assistant", text) for text in answer)]))
        self._units += len(content)
        self._rows.append({
            "line": line, "input_tokens": total, "tool_step": last == "tool",
            "output_tokens": usage.output_tokens if usage else sum(measure.tokens(text) for text in answer),
            "cached_tokens": usage.cached_tokens if usage else None,
            "token_source": RECORDED if usage else measure.source, **facts,
        })  # fmt: skip

    def batch(self) -> Batch:
        """What was collected; the collection is empty afterwards."""
        units = Units(
            offsets=_offsets(self._content), chain=np.concatenate(self._chain), tokens=np.concatenate(self._tokens),
            content=np.concatenate(self._content), role=np.concatenate(self._roles),
            answer_offsets=_offsets(self._answers), answers=np.concatenate(self._answers),
        )  # fmt: skip
        found = Batch(path=self._head.path, format=self._format, requests=frame_of(self._rows), units=units)
        self._clear()
        return found


def _offsets(parts: list[Ints]) -> Ints:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)


def _laid_over(total: int, chars: Ints) -> Any:
    """`total` tokens divided over pieces by their characters, so that they add up."""
    ends = np.cumsum(chars)
    whole = int(ends[-1])
    if whole == 0:
        tokens = np.zeros(len(chars), dtype=np.int32)
        tokens[-1] = total
        return tokens
    marks = (ends.astype(np.float64) * (total / whole)).round().astype(np.int64)
    marks[-1] = total
    return np.diff(np.maximum.accumulate(marks), prepend=0).astype(np.int32)
