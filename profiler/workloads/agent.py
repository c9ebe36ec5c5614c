"""`agent`: sessions of a tool-using loop, each turn sending the whole grown context again.

A prompt is system prompt + tool definitions (the same in every session) + task + for every earlier turn the
assistant's text and a tool's observation. The assistant's text comes from the plan: random weights emit tokens that
decode to nothing, and a plan has to be the same in every pass.

Further options plant what makes loops re-read their context, see profiler/workloads/agent_faults.py. With `path=LOG` the
sessions are those of a log: profiler/workloads/agent_log.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from profiler.workloads.agent_faults import Context, Turn, volatile
from profiler.workloads.options import option
from profiler.workloads.request import JsonObject, PlannedRequest
from profiler.workloads.text import spread, stream, words

NO, YES = "no", "yes"
_STAMP_TOKENS = 16


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
    # What goes wrong in real loops:
    timestamp: str = option(
        "timestamp", "choice", NO, choices=(NO, "head", "tail")
    )  # in the system prompt, of each call
    shuffle_tools: str = option(
        "shuffle_tools", "choice", NO, choices=(NO, YES)
    )  # definitions in another order per call
    edit_at: int = option("edit_at", "count", 0)  # from this turn on the first observation is another; 0: never
    compact_tokens: int = option("compact", "count", 0)  # a longer context gives way to a summary; 0: never
    reasoning_tokens: int = option("reasoning", "count", 0)  # thoughts before each answer, left out one turn later
    documents: int = option("documents", "count", 0, maximum=1000)  # retrieved anew for every turn
    document_tokens: int = option("document", "count", 200, minimum=1)
    documents_at: str = option("documents_at", "choice", "head", choices=("head", "tail"))
    subagents: int = option("subagents", "count", 0, maximum=1000)  # per session, started after its first turn
    subagent_turns: int = option("subagent_turns", "count", 2, minimum=1, maximum=1000)
    inherit: str = option("inherit", "choice", YES, choices=(NO, YES))  # a sub-agent's context starts with its parent's
    wait_for_subagents: str = option("wait_for_subagents", "choice", YES, choices=(NO, YES))  # their answers are needed


class AgentWorkload:
    """A closed loop per session; see AgentOptions."""

    name: ClassVar[str] = "agent"
    options_type: ClassVar[type[AgentOptions]] = AgentOptions

    def size(self, options: AgentOptions) -> int:
        """Requests the plan will have."""
        return options.sessions * (options.turns + options.subagents * options.subagent_turns)

    def context_tokens(self, options: AgentOptions) -> int:
        """Longest prompt and its output, in tokens, without the chat template's own."""
        each = options.output_tokens + options.observation_tokens
        grown = (options.turns - 1) * each + options.task_tokens + options.subagents * (options.output_tokens + 1)
        if options.subagents:
            grown = max(grown, (options.subagent_turns - 1) * each + 2 * options.task_tokens)
        fixed = (
            options.system_tokens + options.tools * options.tool_tokens + options.documents * options.document_tokens
        )
        fixed += options.reasoning_tokens + (_STAMP_TOKENS if options.timestamp != NO else 0)
        return fixed + int((grown + options.output_tokens) * (1 + options.jitter))

    def messages_per_prompt(self, options: AgentOptions) -> int:
        """Messages and tool definitions of the longest prompt: each costs a few tokens of template."""
        turns = max(options.turns, options.subagent_turns if options.subagents else 0)
        return 2 + 2 * (turns - 1) + options.tools + options.documents + (1 if options.subagents else 0)

    def requests(self, options: AgentOptions, seed: int) -> Iterator[PlannedRequest]:
        """The planned requests, session by session."""
        shared = stream(seed, "agent", "shared")
        system = words(shared, options.system_tokens)
        tools = tuple(_tool(shared, number, options.tool_tokens) for number in range(options.tools))
        index = 0
        for session in range(options.sessions):
            start = Context(options=options, seed=seed, path=(session,), system=system, tools=tools)
            for request in _with_subagents(start, session, index):
                index += 1
                yield request


def _with_subagents(start: Context, session: int, index: int) -> Iterator[PlannedRequest]:
    """A session's requests and those of its sub-agents; `index` is that of its first request."""
    options = start.options
    children = options.subagents
    name = f"agent-{session}"
    first_child = index + options.turns
    lasts = tuple(first_child + (child + 1) * options.subagent_turns - 1 for child in range(children))
    needed = lasts if children and options.wait_for_subagents == YES and options.turns > 1 else ()
    offset = session * options.stagger_ns
    yield from _session(start, index, name, None, offset_ns=offset, needed={1: needed})
    for child in range(children):
        path = (*start.path, "sub", child)
        own = options.inherit == NO
        system = words(stream(start.seed, "system", *path), options.system_tokens) if own else start.system
        context = Context(
            options=options, seed=start.seed, path=path, system=system, tools=() if own else start.tools,
            parent=None if own else start,
        )  # fmt: skip
        at = first_child + child * options.subagent_turns
        yield from _session(context, at, f"{name}.{child}", name, offset_ns=None, needed={0: (index,)})


def _session(
    context: Context,
    index: int,
    name: str,
    parent: str | None,
    *,
    offset_ns: int | None,
    needed: dict[int, tuple[int, ...]],
) -> Iterator[PlannedRequest]:
    options = context.options
    random = stream(context.seed, "agent", *context.path)
    task = words(random, spread(random, options.task_tokens, options.jitter))
    history: list[Turn] = []
    for turn in range(options.turns if parent is None else options.subagent_turns):
        output_tokens = spread(random, options.output_tokens, options.jitter)
        answers = len(needed.get(turn, ())) if parent is None else 0
        prompt = context.prompt(task, history, turn, answers)
        yield PlannedRequest(
            index=index + turn,
            session_id=name,
            parent_session_id=parent,
            turn=turn,
            arrival_offset_ns=offset_ns if turn == 0 else None,
            messages=tuple(message for message, _ in prompt),
            roles=tuple(role for _, role in prompt),
            tools=volatile(context.tools, shift=index + turn)
            if options.shuffle_tools == YES
            else context.tools or None,
            max_tokens=output_tokens,
            tool_wait_ns=spread(random, options.tool_wait_ns, options.jitter),
            think_ns=spread(random, options.think_ns, options.jitter),
            after=needed.get(turn, ()),
        )
        observation = words(random, spread(random, options.observation_tokens, options.jitter))
        history.append(
            Turn(
                answer=words(random, output_tokens), observation=observation, call_id=f"call-{name}-{turn}",
                reasoning=words(stream(context.seed, "reasoning", *context.path, turn), options.reasoning_tokens)
                if options.reasoning_tokens else "",
            )
        )  # fmt: skip


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
