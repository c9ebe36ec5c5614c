"""From a specification such as `agent:sessions=4,turns=5` and a seed to a plan; a plan to `plan.jsonl` and back.

Everything here is pure: the same specification and seed give the same bytes on every machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from profiler.workloads.agent import AgentWorkload
from profiler.workloads.agent_log import AgentLogWorkload, names_a_log
from profiler.workloads.arrivals import MAX_REQUESTS, ArrivalWorkload, bounded, checked
from profiler.workloads.batch import BatchWorkload
from profiler.workloads.chat import ChatWorkload
from profiler.workloads.options import canonical, parse_options
from profiler.workloads.processes import BurstWorkload, GammaWorkload, PoissonWorkload
from profiler.workloads.replay import ReplayWorkload
from profiler.workloads.request import JsonObject, Plan, PlannedRequest
from profiler.workloads.synthesis import fitted, requests_of
from traces.errors import UnreadableInput, UsageProblem

__all__ = ["WORKLOADS", "JsonObject", "Plan", "PlannedRequest", "Workload", "build_plan", "read_plan", "write_plan"]

PLAN_VERSION = 1
# What a chat template may add: around the prompt as a whole, and for each message or tool definition.
TEMPLATE_TOKENS = 32
TEMPLATE_TOKENS_PER_MESSAGE = 8


class Workload(Protocol):
    """One kind of workload. `options` is an instance of `options_type`, a dataclass of `options.option` fields."""

    name: ClassVar[str]
    options_type: ClassVar[type[Any]]

    def size(self, options: Any) -> int: ...

    def context_tokens(self, options: Any) -> int: ...

    def messages_per_prompt(self, options: Any) -> int: ...

    def requests(self, options: Any, seed: int) -> Iterator[PlannedRequest]: ...


WORKLOADS: tuple[Workload, ...] = (AgentWorkload(), BatchWorkload(), ChatWorkload())
ARRIVAL_WORKLOADS: tuple[ArrivalWorkload, ...] = (
    ReplayWorkload(), PoissonWorkload(), GammaWorkload(), BurstWorkload(),
)  # fmt: skip
_AGENT_LOG = AgentLogWorkload()  # `agent` too, where the specification names a log


def build_plan(spec: str, seed: int, *, max_context_tokens: int) -> Plan:
    """The plan of `spec`, in which no prompt with its output is longer than `max_context_tokens`.

    Lengths are judged for the built-in tokenizer (one token per character), with an allowance for the chat template.
    Prompts of arrivals (a replay, for one) are token ids, so exact with any model; those that do not fit are cut, and the
    plan's notes say so. Raises UsageProblem for an unknown workload or option, a value out of bounds, and a plan that
    does not fit; UnreadableInput for a log.
    """
    name, _, text = spec.strip().partition(":")
    arriving = arrival_workload(spec)
    if arriving is not None:
        return _plan_arrivals(arriving, text, seed, max_context_tokens)
    workload = next((item for item in WORKLOADS if item.name == name), None)
    if workload is None:
        known = ", ".join([*(item.name for item in WORKLOADS), *(item.name for item in ARRIVAL_WORKLOADS)])
        raise UsageProblem(f"unknown workload {name!r}; known: {known}", hint="for example --workload agent:sessions=4")
    options = parse_options(name, workload.options_type, text)
    if workload.size(options) > MAX_REQUESTS:
        raise UsageProblem(
            f"workload {name} would have {workload.size(options):,} requests, more than {MAX_REQUESTS:,}",
            hint="ask for fewer sessions or turns",
        )
    messages = workload.messages_per_prompt(options)
    template = TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE * messages if messages else 1
    needed = workload.context_tokens(options) + template
    if needed > max_context_tokens:
        raise UsageProblem(
            f"workload {name} needs up to {needed:,} tokens of context, the model has {max_context_tokens:,}",
            hint=f"shorten it, for example {canonical(name, options)} with smaller lengths or fewer turns",
        )
    return Plan(spec=canonical(name, options), seed=seed, requests=tuple(workload.requests(options, seed)))


def arrival_workload(spec: str) -> ArrivalWorkload | None:
    """The workload of arrivals that `spec` names, whose prompts are cut where they do not fit; None for another.

    Raises UsageProblem where options of two workloads are mixed.
    """
    if names_a_log(spec):
        return _AGENT_LOG
    name = spec.strip().partition(":")[0]
    return next((item for item in ARRIVAL_WORKLOADS if item.name == name), None)


def _plan_arrivals(workload: ArrivalWorkload, text: str, seed: int, max_context_tokens: int) -> Plan:
    options = parse_options(workload.name, workload.options_type, text)
    arrivals = fitted(checked(workload.name, workload.arrivals(options, seed)), max_context_tokens)
    bounded(workload.name, arrivals.frame.height)
    source = arrivals.prompts
    requests = tuple(requests_of(arrivals, seed) if source is None else source.requests(arrivals.frame, seed))
    return Plan(spec=canonical(workload.name, options), seed=seed, requests=requests, notes=arrivals.notes)


def write_plan(plan: Plan, path: Path, *, text: bool = True) -> None:
    """Write `plan` as JSON lines: a header, then one request per line. The file appears whole or not at all.

    Without `text` prompts are left out, and only their lengths in characters or ids are told; `spec` and `seed` make
    them again.

    Raises UsageProblem where it cannot be written.
    """
    header = {
        "stepscope_plan": PLAN_VERSION,
        "spec": plan.spec,
        "seed": plan.seed,
        "requests": plan.n_requests,
        "text": text,
    }
    scratch = path.with_name(path.name + ".part")
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as out:
            out.write(_line(header))
            for request in plan.requests:
                out.write(_line(asdict(request) if text else _without_text(asdict(request))))
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise UsageProblem(
            f"cannot write {path}: {error.strerror}", hint="free space, or give another --out"
        ) from error


def read_plan(path: Path) -> Plan:
    """The plan in `path`. Raises UnreadableInput where it is missing, torn, or not a plan."""
    try:
        with path.open(encoding="utf-8") as lines:
            header = json.loads(next(lines, ""))
            if header["stepscope_plan"] > PLAN_VERSION:
                raise UnreadableInput(f"{path} was written by a newer stepscope", hint="update stepscope")
            if header.get("text") is False:
                raise UnreadableInput(
                    f"{path} was written without its prompts",
                    hint="its spec and seed make them again, or record with --keep-text",
                )
            requests = tuple(_request(json.loads(line)) for line in lines)
            plan = Plan(spec=str(header["spec"]), seed=int(header["seed"]), requests=requests)
    except OSError as error:
        raise UnreadableInput(f"cannot read the plan {path}: {error.strerror}", hint="give a plan.jsonl") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableInput(f"{path} is not a plan: {error!r}", hint="was the file edited or cut off?") from error
    if plan.n_requests != header.get("requests"):
        raise UnreadableInput(
            f"{path} holds {plan.n_requests} of {header.get('requests')} requests", hint="the file is cut off"
        )
    return plan


def _without_text(request: dict[str, Any]) -> dict[str, Any]:
    messages, prompt, ids = request["messages"], request["prompt"], request["prompt_token_ids"]
    shown = (
        None if messages is None else [{"role": item.get("role"), "characters": _characters(item)} for item in messages]
    )
    tools = None if request["tools"] is None else [{"characters": len(json.dumps(tool))} for tool in request["tools"]]
    lengths = {
        "messages": shown, "tools": tools, "prompt": None if prompt is None else {"characters": len(prompt)},
        "prompt_token_ids": None if ids is None else {"tokens": len(ids)},
    }  # fmt: skip
    return {**request, **lengths}


def _characters(message: JsonObject) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, str) else len(json.dumps(content))


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _request(raw: dict[str, Any]) -> PlannedRequest:
    known = {item.name for item in fields(PlannedRequest)}
    values = {key: value for key, value in raw.items() if key in known}
    for key in ("messages", "tools", "prompt_token_ids", "roles", "after"):
        if values.get(key) is not None:
            values[key] = tuple(values[key])
    if values.get("segments") is not None:
        values["segments"] = tuple((role, tokens) for role, tokens in values["segments"])
    return PlannedRequest(**values)
