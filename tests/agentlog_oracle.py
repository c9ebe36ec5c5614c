"""A naive twin of the agent-log accounting: one request after another, sets and an ordered dictionary."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

PIECES = (
    "cached", "caching_off", "expired", "evicted", "unexplained", "block_remainder", "prefix_changed", "compaction",
    "resent_output", "fresh",
)  # fmt: skip


@dataclass
class Prompt:
    """units: (chain name, content name or None, tokens); `tail` tokens have no unit."""

    session: str
    units: list[tuple[int, int | None, int]]
    tail: int = 0
    output: int = 0
    answer: list[int] = field(default_factory=list)
    start_ns: int | None = None

    @property
    def total(self) -> int:
        return sum(unit[2] for unit in self.units) + self.tail


class Oracle:
    """capacity: None without end, 0 for none."""

    def __init__(self, *, capacity: int | None, ttl_ns: int | None, block: int, log_block: int) -> None:
        self.capacity, self.ttl_ns, self.block, self.log_block = capacity, ttl_ns, block, log_block
        self.cache: OrderedDict[int, tuple[int, int | None]] = OrderedDict()  # oldest first: tokens, last use
        self.seen: set[int] = set()
        self.in_prompts: set[int] = set()
        self.in_answers: set[int] = set()
        self.before: dict[str, Prompt] = {}

    def pieces(self, prompt: Prompt) -> dict[str, int]:
        found = dict.fromkeys(PIECES, 0)
        units, total = prompt.units, prompt.total
        at = reuse = 0
        expired = False
        while at < len(units) and self.capacity != 0 and units[at][0] in self.cache:
            last = self.cache[units[at][0]][1]
            known = self.ttl_ns is not None and prompt.start_ns is not None and last is not None
            if known and prompt.start_ns - last > self.ttl_ns:
                expired = True
                break
            reuse += units[at][2]
            at += 1
        seen = reuse
        while at < len(units) and units[at][0] in self.seen:
            seen += units[at][2]
            at += 1
        found["cached"] = min(reuse, total - 1) // self.block * self.block
        found["block_remainder"] = reuse - found["cached"]
        cause = "caching_off" if self.capacity == 0 else "expired" if expired else "evicted"
        found[cause] = seen - reuse
        self._rest(prompt, at, seen, found)
        self._keep(prompt)
        return found

    def _rest(self, prompt: Prompt, at: int, seen: int, found: dict[str, int]) -> None:
        before, total = self.before.get(prompt.session), prompt.total
        rewritten = before is not None and 10 * total <= 9 * before.total
        if prompt.units and prompt.units[0][1] is not None:
            old = new = 0
            for _, content, tokens in prompt.units[at:]:
                if content in self.in_prompts:
                    old += tokens
                elif content in self.in_answers:
                    new += tokens
            found["compaction" if rewritten else "prefix_changed"] += old
            found["resent_output"] = new
            found["fresh"] = total - seen - old - new
            return
        old = sum(tokens for chain, _, tokens in prompt.units[at:] if chain in self.seen)
        moved = old > 0
        if before is not None:
            old = max(old, min(before.total, total) - seen)
        old = min(old, total - seen)
        if before is not None and not moved and seen >= min(before.total, total) // self.log_block * self.log_block:
            found["block_remainder"] += old
        elif before is None and not moved:
            assert old == 0
        else:
            found["compaction" if rewritten else "prefix_changed"] += old
        found["resent_output"] = min(before.output if before else 0, total - seen - old)
        found["fresh"] = total - seen - old - found["resent_output"]

    def _keep(self, prompt: Prompt) -> None:
        for chain, content, tokens in reversed(prompt.units):
            held = self.cache.pop(chain, None)
            last = prompt.start_ns if prompt.start_ns is not None else held[1] if held else None
            self.cache[chain] = (held[0] if held else tokens, last)
            self.seen.add(chain)
            if content is not None:
                self.in_prompts.add(content)
        self.in_answers.update(prompt.answer)
        while self.capacity and sum(tokens for tokens, _ in self.cache.values()) > self.capacity:
            self.cache.popitem(last=False)
        self.before[prompt.session] = prompt
