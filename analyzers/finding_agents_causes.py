"""The causes for which an agent's loop computes again what it had computed: their words, their fixes, their proofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.finding import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of loss. `knob`: the option of our own agent workload that plants it, and its value without the fault."""

    name: str
    title: str
    why: str
    fix: str
    knob: tuple[str, str] | None = None
    told_only: bool = False  # nothing to gain by undoing it
    whole_blocks: bool = False  # lost in whole blocks, so that no unfilled one stays


_FRONT = "what comes before it must be the same in every call, byte for byte"
CAUSES: dict[str, Cause] = {cause.name: cause for cause in (
    Cause(
        name="volatile-system", title="text in the system prompt changes from call to call",
        why="the prefix cache ends at the first token that differs; everything behind it is computed again",
        fix=f"move times, ids and other changing text out of the system prompt to the end of the last message: {_FRONT}",
        knob=("timestamp", "no"),
    ),
    Cause(
        name="tools-reordered", title="the tools come in another order from call to call",
        why="the prefix cache ends in the list of tools; everything behind it is computed again",
        fix="sort the tools (and the keys of their JSON) before every call", knob=("shuffle_tools", "no"),
    ),
    Cause(
        name="tools-changed", title="the list of tools changes from call to call",
        why="the prefix cache ends in the list of tools; everything behind it is computed again",
        fix="send the same tools in every call, and forbid those that do not apply (tool_choice, the system prompt)",
    ),
    Cause(
        name="result-edited", title="an earlier tool result is edited",
        why="the prefix cache ends at the edit; every turn behind it is computed again",
        fix="append corrections as new messages, and shorten results when they come in, not later", knob=("edit_at", "0"),
    ),
    Cause(
        name="message-edited", title="an earlier message is edited",
        why="the prefix cache ends at the edit; everything behind it is computed again",
        fix="append to the history; leave what was sent as it was",
    ),
    Cause(
        name="documents-first", title="retrieved documents stand before the history",
        why="other documents on every turn end the prefix cache where they begin; the history behind them is computed again",
        fix="put retrieved documents behind the history, next to the question", knob=("documents_at", "tail"),
    ),
    Cause(
        name="reasoning-dropped", title="reasoning is dropped from earlier answers",
        why="the answer comes back shorter than the model wrote it: the cache ends there, once per turn",
        fix="send answers back with their reasoning (a chat template that keeps it), or drop it in batches rather than every turn",
    ),
    Cause(
        name="answer-changed", title="the model's answers come back as other tokens",
        why="an answer that was parsed and printed again is tokenized differently: the cache ends there",
        fix="send the answer's text back as it was; let the chat template print tool calls as the model writes them",
    ),
    Cause(
        name="compaction", title="the history is compacted", told_only=True,
        why="a summary takes the place of earlier messages: what follows it is computed again, once per compaction",
        fix="nothing has to be done; compact rarely and by much, and keep system prompt and tools in front unchanged",
    ),
    Cause(
        name="evicted", title="the KV cache is too small for the sessions it serves", whole_blocks=True,
        why="what a session had computed was pushed out by others before its next turn",
        fix="more KV cache (vLLM: --gpu-memory-utilization, --kv-cache-dtype fp8, fewer --max-num-seqs; SGLang: "
        "--mem-fraction-static, --enable-hierarchical-cache), CPU offload, or fewer sessions per replica",
    ),
    Cause(
        name="caching-off", title="prefix caching is off",
        why="nothing is ever reused: every turn computes its whole context again",
        fix="switch it on (vLLM: --enable-prefix-caching, no --no-enable-prefix-caching; SGLang: no --disable-radix-cache)",
    ),
    Cause(
        name="other-replica", title="sessions move between replicas",
        why="the prefix had been computed on another replica",
        fix="route a session to the replica that has its prefix (session affinity, a cache-aware router)",
    ),
    Cause(
        name="prefix-differs", title="prompts differ early and are alike behind that",
        why="the text had been computed before, but behind a token that differs",
        fix=f"move what differs behind what is shared: {_FRONT}",
    ),
)}  # fmt: skip


def cause_of(cause: str | None, role: str | None, detail: str | None) -> Cause | None:
    """The cause that a row of `reuse` tells of; None for what nobody can change or what is not known."""
    if cause in ("caching_off", "evicted", "other_replica"):
        return CAUSES[cause.replace("_", "-")]
    return CAUSES[_of_prefix(role, detail or "")] if cause == "prefix_changed" else None


def _of_prefix(role: str | None, detail: str) -> str:
    if detail.startswith("compaction"):
        return "compaction"
    if role == "system":
        return "volatile-system"
    if role == "tools":
        return "tools-reordered" if "another order" in detail else "tools-changed"
    if role == "document" or detail.startswith("document message"):
        return "documents-first"
    if role == "assistant":
        return "reasoning-dropped" if "reasoning" in detail else "answer-changed"
    if detail.endswith("was edited"):
        return "result-edited" if role == "observation" else "message-edited"
    return "prefix-differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the run says of how it was made. `engine_args` None: it does not say, so nothing can be run again."""

    workload: str | None
    engine_args: Sequence[str] | None
    block_tokens: int | None
    capacity_tokens: int | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Recorded:
        """From runs.config, whose values may be anything."""
        facts, workload, given = (config.get(key) for key in ("engine_facts", "workload", "engine_args"))
        facts = facts if isinstance(facts, dict) else {}
        spec = workload.get("spec") if isinstance(workload, dict) else None
        texts = isinstance(given, list) and all(isinstance(item, str) for item in given)
        block, blocks = (_positive(facts.get(key)) for key in ("block_size", "num_blocks"))
        return cls(
            workload=spec if isinstance(spec, str) else None, engine_args=tuple(given) if texts and given is not None else None,
            block_tokens=block, capacity_tokens=block * blocks if block and blocks else None,
        )  # fmt: skip


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def argument_key(argument: str) -> str:
    """The flag that `K=V` or `K` sets, as vLLM and SGLang spell it."""
    return argument.partition("=")[0].lstrip("-").replace("_", "-")


def proof_of(cause: Cause, recorded: Recorded, needed_tokens: int) -> Proof | None:
    """How the run is repeated without the cause; None where no flag or option of this run brought it about.

    `needed_tokens`: what a cache has to hold to lose nothing.
    """
    given = recorded.engine_args
    if given is None or recorded.workload is None:
        return None
    keys = {argument_key(argument) for argument in given}
    if cause.knob is not None:
        changed = _changed(recorded.workload, *cause.knob)
        return None if changed is None else Proof(workload=changed)
    if cause.name == "caching-off" and keys & {
        "no-enable-prefix-caching",
        "enable-prefix-caching",
        "disable-radix-cache",
    }:
        off = ("no-enable-prefix-caching", "enable-prefix-caching", "disable-radix-cache")
        return Proof(without=tuple(sorted(keys & set(off))))
    if cause.name == "evicted" and "num-gpu-blocks-override" in keys and recorded.block_tokens:
        blocks = -(-needed_tokens // recorded.block_tokens) + 1  # vLLM keeps one block for itself
        return Proof(without=("num-gpu-blocks-override",), engine_args=(f"num-gpu-blocks-override={blocks}",))
    return None


def _changed(spec: str, key: str, value: str) -> str | None:
    """The agent workload `spec` with another value of an option it gives; None where it gives none or it is that already."""
    name, colon, text = spec.partition(":")
    parts = text.split(",")
    at = [number for number, part in enumerate(parts) if part.partition("=")[0].strip() == key]
    if name != "agent" or not colon or len(at) != 1 or parts[at[0]].partition("=")[2].strip() == value:
        return None
    parts[at[0]] = f"{key}={value}"
    return f"{name}:{','.join(parts)}"
