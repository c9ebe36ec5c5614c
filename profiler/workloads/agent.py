"""`agent`: sessions of a tool-using loop, each turn sending the whole grown context again.

A prompt is system prompt + tool definitions (the same in every session) + task + for every earlier turn the
assistant's text and a tool's observation. The assistant's text comes from the plan: random weights emit tokens that
decode to nothing, and a plan has to be the same in every pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from profiler.workloads.options import option
from profiler.workloads.request import JsonObject, PlannedRequest
from profiler.workloads.text import spread, stream, words


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of `agent`. Lengths in tokens of the built-in tokenizer (ASCII characters), waits in ns.

    The defaults keep a 12-layer, 768-wide model busy for about 20 s on two CPU cores.
    """

    sessions: int = option("sessions", "count", 4, minimum=1, maximum=100_000)
    turns: int = option("turns", "count", 6, minimum=1, maximum=10_000)
    system_tokens: int = option("system", "count", 300, minimum=1)
    tools: int = option("tools", "count", 2, maximum=128)
    tool_tokens: int = option("tool", "count", 200, minimum=180)  # of one definition, as JSON
    task_tokens: int = option("task", "count", 60, minimum=1)
    observation_tokens: int = option("observation", "count", 220, minimum=1)
    output_tokens: int = option("output", "count", 64, minimum=1)
    tool_wait_ns: int = option("tool_wait", "seconds", 0.4, maximum=86_400)
    think_ns: int = option("think", "seconds", 0.0, maximum=86_400)
    stagger_ns: int = option("stagger", "seconds", 0.5, maximum=86_400)  # between the starts of two sessions
    jitter: float = option("jitter", "number", 0.0, maximum=1)  # spread of lengths and waits, ± this share
    # Some chat templates refuse the role 'tool' unless they wrote the call themselves: 'user' suits those.
    observation_role: str = option("observation_role", "choice", "tool", choices=("tool", "user"))


class AgentWorkload:
    """A closed loop per session; see AgentOptions."""

    name: ClassVar[str] = "agent"
    options_type: ClassVar[type[AgentOptions]] = AgentOptions

    def size(self, options: AgentOptions) -> int:
        """Requests the plan will have."""
        return options.sessions * options.turns

    def context_tokens(self, options: AgentOptions) -> int:
        """Longest prompt and its output, in tokens, without the chat template's own."""
        grown = (options.turns - 1) * (options.output_tokens + options.observation_tokens) + options.task_tokens
        fixed = options.system_tokens + options.tools * options.tool_tokens
        return fixed + int((grown + options.output_tokens) * (1 + options.jitter))

    def messages_per_prompt(self, options: AgentOptions) -> int:
        """Messages and tool definitions of the longest prompt: each costs a few tokens of template."""
        return 2 + 2 * (options.turns - 1) + options.tools

    def requests(self, options: AgentOptions, seed: int) -> Iterator[PlannedRequest]:
        """The planned requests, session by session."""
        shared = stream(seed, "agent", "shared")
        system: JsonObject = {"role": "system", "content": words(shared, options.system_tokens)}
        tools = tuple(_tool(shared, number, options.tool_tokens) for number in range(options.tools))
        for session in range(options.sessions):
            yield from _session(options, seed, session, system, tools or None)


def _session(
    options: AgentOptions, seed: int, session: int, system: JsonObject, tools: tuple[JsonObject, ...] | None
) -> Iterator[PlannedRequest]:
    random = stream(seed, "agent", session)
    jitter = options.jitter
    task = words(random, spread(random, options.task_tokens, jitter))
    messages: tuple[JsonObject, ...] = (system, {"role": "user", "content": task})
    for turn in range(options.turns):
        output_tokens = spread(random, options.output_tokens, jitter)
        yield PlannedRequest(
            index=session * options.turns + turn,
            session_id=f"agent-{session}",
            turn=turn,
            arrival_offset_ns=session * options.stagger_ns if turn == 0 else None,
            messages=messages,
            tools=tools,
            max_tokens=output_tokens,
            tool_wait_ns=spread(random, options.tool_wait_ns, jitter),
            think_ns=spread(random, options.think_ns, jitter),
        )
        observation = {"role": options.observation_role}
        if options.observation_role == "tool":
            observation["tool_call_id"] = f"call-{session}-{turn}"
        observation["content"] = words(random, spread(random, options.observation_tokens, jitter))
        messages = (*messages, {"role": "assistant", "content": words(random, output_tokens)}, observation)


def _tool(random: Random, number: int, length_tokens: int) -> JsonObject:
    """A function definition whose JSON has `length_tokens` characters."""
    definition = {
        "name": f"tool_{number}",
        "description": "",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    tool = {"type": "function", "function": definition}
    definition["description"] = words(random, max(0, length_tokens - len(json.dumps(tool))))
    return tool
