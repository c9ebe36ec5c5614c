"""The output of `stepscope workload`: a description, or the head of the plan; as a table or as JSON."""

from __future__ import annotations

import json

from profiler.workloads.arrivals import Arrivals, planned_arrivals
from profiler.workloads.describe import describe
from profiler.workloads.describe_text import description_lines, head_lines
from profiler.workloads.plan import arrival_workload, build_plan
from profiler.workloads.synthesis import fitted
from traces.errors import UsageProblem

HEAD_VERSION = 1


def description_text(
    spec: str,
    seed: int,
    *,
    context_tokens: int | None,
    as_json: bool,
    cache_tokens: int | None,
    cache_blocks: int | None,
) -> str:
    """What `spec` is like. Raises StepscopeError."""
    if cache_tokens is not None and cache_blocks is not None:
        raise UsageProblem("--cache-tokens and --cache-blocks are two sizes of one cache", hint="give one of them")
    arrivals = _arrivals(spec, seed, context_tokens)
    found = describe(arrivals, spec=spec, seed=seed, cache_tokens=cache_tokens, cache_blocks=cache_blocks)
    return json.dumps(found.to_dict(), indent=2) if as_json else "\n".join(description_lines(found))


def head_text(spec: str, seed: int, *, context_tokens: int | None, limit: int, as_json: bool) -> str:
    """The first `limit` requests of `spec`. Raises StepscopeError."""
    arrivals = _arrivals(spec, seed, context_tokens)
    if not as_json:
        return "\n".join(head_lines(arrivals, spec=spec, limit=limit))
    head = {
        "version": HEAD_VERSION, "spec": spec, "seed": seed, "source": arrivals.source, "closed": arrivals.closed,
        "block_tokens": arrivals.block_tokens, "requests": arrivals.frame.height, "notes": arrivals.notes,
        "head": arrivals.frame.head(limit).to_dicts(),
    }  # fmt: skip
    return json.dumps(head, indent=2)


def _arrivals(spec: str, seed: int, context_tokens: int | None) -> Arrivals:
    arrivals = planned_arrivals(spec, seed)
    if context_tokens is None:
        return arrivals
    if arrival_workload(spec) is None:  # these are refused where they do not fit, not cut
        build_plan(spec, seed, max_context_tokens=context_tokens)
        return arrivals
    return fitted(arrivals, context_tokens)
