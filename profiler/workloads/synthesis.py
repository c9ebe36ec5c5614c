"""Text for arrivals: prompts of token ids, exactly as long as planned, sharing exactly what the arrivals say they share.

Blocks of equal hash id are equal text, of different ids different text from the first token on. A turn with
`prefix_tokens` begins with that much of its session's context, the prompt before and a made-up answer. (An engine's own
answer is other text, so it finds in its cache what reaches into the prompt before, not into the answer.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from profiler.workloads.arrivals import Arrivals
from profiler.workloads.request import PlannedRequest
from profiler.workloads.tokens import digits, digits_for, token_text
from traces.errors import UsageProblem

MOST_TOKENS = 200_000_000  # of all prompts of a plan: 1.6 GB in memory


def fitted(arrivals: Arrivals, max_context_tokens: int) -> Arrivals:
    """`arrivals` cut so that no prompt with its output is longer than the context; what was cut is in the notes.

    An output keeps up to half of the context, a prompt its beginning.
    """
    frame = arrivals.frame
    output = pl.min_horizontal("output_tokens", pl.lit(max(1, max_context_tokens // 2), dtype=pl.Int64))
    room = max_context_tokens - pl.max_horizontal("output", pl.lit(1, dtype=pl.Int64))
    cut = frame.with_columns(output=output).with_columns(prompt=pl.min_horizontal("input_tokens", room))
    told = cut.select(
        prompts=(pl.col("prompt") < pl.col("input_tokens")).sum(),
        outputs=(pl.col("output") < pl.col("output_tokens")).sum(),
        longest=pl.col("input_tokens").max(),
        kept=pl.col("prompt").sum() / pl.col("input_tokens").sum() * 100,
    ).to_dicts()[0]
    notes = arrivals.notes
    if told["prompts"]:
        longest = f"the longest has {told['longest']:,}; {told['kept']:.1f} % of the prompt tokens are left"
        cut_to = f"the model's {max_context_tokens:,} tokens of context"
        notes += (f"{told['prompts']:,} of {frame.height:,} prompts are cut to {cut_to} ({longest})",)
    if told["outputs"]:
        notes += (f"{told['outputs']:,} outputs are cut to half of the context",)
    if (frame["output_tokens"] == 0).any():
        notes += ("requests without an output ask for one token, as an engine makes at least one",)
    frame = cut.with_columns(
        input_tokens="prompt",
        output_tokens="output",
        prefix_tokens=pl.when(pl.col("prefix_tokens").is_not_null()).then(pl.min_horizontal("prefix_tokens", "prompt")),
    ).select(frame.columns)
    return replace(arrivals, frame=frame, notes=notes)


def requests_of(arrivals: Arrivals, seed: int) -> Iterator[PlannedRequest]:
    """The requests with their prompts. Raises UsageProblem where the prompts are too long in all."""
    within_memory(int(arrivals.frame["input_tokens"].sum()))
    texts = _Texts.of(arrivals, seed)
    for row in arrivals.frame.iter_rows(named=True):
        session = row["session_id"]
        yield PlannedRequest(
            index=row["index"],
            session_id=f"request-{row['index']}" if session is None else session,
            turn=row["turn"] or 0,
            arrival_offset_ns=row["arrival_ns"],
            after_previous=arrivals.closed,
            prompt_token_ids=tuple(texts.prompt(row)),
            max_tokens=max(1, row["output_tokens"]),
            tool_wait_ns=row["tool_wait_ns"] or 0,
            think_ns=row["think_ns"] or 0,
        )


def within_memory(total_tokens: int) -> None:
    """Raises UsageProblem where the prompts of a plan have more than MOST_TOKENS."""
    if total_tokens > MOST_TOKENS:
        raise UsageProblem(
            f"the prompts have {total_tokens:,} tokens in all, more than {MOST_TOKENS:,}",
            hint="take fewer (--first N) or shorter ones (--length-scale 0.1)",
        )


@dataclass(slots=True)
class _Texts:
    seed: int
    block_tokens: float
    ranks: dict[int, int]  # of hash ids
    width: int
    blocks: dict[int, bytes]
    contexts: dict[str, bytes]  # of sessions, as far as they have come

    @classmethod
    def of(cls, arrivals: Arrivals, seed: int) -> _Texts:
        ids = arrivals.frame["hash_ids"].explode().drop_nulls().unique().sort().to_list()
        return cls(
            seed=seed, block_tokens=arrivals.block_tokens or 1.0, width=digits_for(len(ids)), blocks={}, contexts={},
            ranks={name: rank for rank, name in enumerate(ids)},
        )  # fmt: skip

    def prompt(self, row: dict[str, Any]) -> bytes:
        length = row["input_tokens"]
        if row["hash_ids"] is not None:
            return self._hashed(row["hash_ids"], length, row["index"])
        if row["prefix_tokens"] is None or row["session_id"] is None:
            return token_text(self.seed, "request", row["index"], length=length)
        return self._continued(row, length)

    def _hashed(self, ids: list[int], length: int, index: int) -> bytes:
        parts, start = [], 0
        for place, name in enumerate(ids):
            end = min(length, boundary(place + 1, self.block_tokens))
            parts.append(self._block(name)[: end - start])
            start = end
            if start == length:
                break
        if start < length:
            parts.append(token_text(self.seed, "tail", index, length=length - start))
        return b"".join(parts)

    def _block(self, name: int) -> bytes:
        text = self.blocks.get(name)
        if text is None:
            head = digits(self.ranks[name], self.width)
            text = head + token_text(self.seed, "block", name, length=math.ceil(self.block_tokens) + 1)
            self.blocks[name] = text
        return text

    def _continued(self, row: dict[str, Any], length: int) -> bytes:
        session, turn = row["session_id"], row["turn"]
        kept = self.contexts.get(session, b"")[: row["prefix_tokens"]]
        prompt = kept + token_text(self.seed, "turn", session, turn, length=length - len(kept))
        self.contexts[session] = prompt + token_text(self.seed, "answer", session, turn, length=row["output_tokens"])
        return prompt


def boundary(place: int, block_tokens: float) -> int:
    """The token at which block `place` of a prompt begins."""
    return math.floor(place * block_tokens + 0.5)
