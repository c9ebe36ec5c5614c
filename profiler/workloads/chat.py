"""`chat`: people talking with a model over several turns, with think time between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from profiler.workloads.options import option
from profiler.workloads.request import JsonObject, PlannedRequest
from profiler.workloads.text import spread, stream, words


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of `chat`. Lengths in tokens of the built-in tokenizer (ASCII characters), waits in ns."""

    sessions: int = option("sessions", "count", 4, minimum=1, maximum=100_000)
    turns: int = option("turns", "count", 3, minimum=1, maximum=10_000)
    system_tokens: int = option("system", "count", 200)  # 0: no system prompt
    user_tokens: int = option("user", "count", 150, minimum=1)
    output_tokens: int = option("output", "count", 32, minimum=1)
    think_ns: int = option("think", "seconds", 0.5, maximum=86_400)
    stagger_ns: int = option("stagger", "seconds", 0.3, maximum=86_400)
    jitter: float = option("jitter", "number", 0.0, maximum=1)


class ChatWorkload:
    """A closed loop per session; see ChatOptions."""

    name: ClassVar[str] = "chat"
    options_type: ClassVar[type[ChatOptions]] = ChatOptions

    def size(self, options: ChatOptions) -> int:
        """Requests the plan will have."""
        return options.sessions * options.turns

    def context_tokens(self, options: ChatOptions) -> int:
        """Longest prompt and its output, in tokens, without the chat template's own."""
        grown = options.turns * (options.user_tokens + options.output_tokens)
        return options.system_tokens + int(grown * (1 + options.jitter))

    def messages_per_prompt(self, options: ChatOptions) -> int:
        """Messages of the longest prompt: each costs a few tokens of template."""
        return 2 * options.turns

    def requests(self, options: ChatOptions, seed: int) -> Iterator[PlannedRequest]:
        """The planned requests, session by session."""
        system = words(stream(seed, "chat", "shared"), options.system_tokens)
        opening: tuple[JsonObject, ...] = ({"role": "system", "content": system},) if system else ()
        for session in range(options.sessions):
            yield from _session(options, seed, session, opening)


def _session(
    options: ChatOptions, seed: int, session: int, opening: tuple[JsonObject, ...]
) -> Iterator[PlannedRequest]:
    random = stream(seed, "chat", session)
    messages = opening
    for turn in range(options.turns):
        question = words(random, spread(random, options.user_tokens, options.jitter))
        messages = (*messages, {"role": "user", "content": question})
        output_tokens = spread(random, options.output_tokens, options.jitter)
        yield PlannedRequest(
            index=session * options.turns + turn,
            session_id=f"chat-{session}",
            turn=turn,
            arrival_offset_ns=session * options.stagger_ns if turn == 0 else None,
            messages=messages,
            max_tokens=output_tokens,
            think_ns=spread(random, options.think_ns, options.jitter),
        )
        messages = (*messages, {"role": "assistant", "content": words(random, output_tokens)})
