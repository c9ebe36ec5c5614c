"""Two runs or more: what differs in how they were made, then what that did, noise first. Values only.

See analyzers/comparison/effect.py for the intervals and docs/compare.md for what they can and cannot cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from analyzers.comparison.differences import Difference, differences, not_recorded
from analyzers.comparison.effect import CROWDED, LONG_NS, SHARED, Design, design
from analyzers.comparison.judge import Row, Terms, judge
from analyzers.comparison.metric import DETAIL, GROUPS, HEADLINE, Metric
from analyzers.comparison.recorded import recorded
from analyzers.comparison.served import pass_starts, served, shortest_ns
from analyzers.comparison.sides import Side, opened_sides
from analyzers.comparison.steadiness import crowded
from analyzers.comparison.stepwise import engine_steps
from analyzers.report.text import shown
from traces.errors import NothingToAnalyze, StepscopeError, UsageProblem

COMPARE_VERSION = 1
CONFIDENCE = 0.95
MOST_CANDIDATES = 20
_MOST_NAMED = 6  # differences in an error's message


class GateTripped(StepscopeError):
    """A `--gate` was exceeded by more than the noise."""

    exit_code = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Base against one candidate. `passes_*`: names of the passes. `in_turns`: they were taken A B A B. `drift`:
    what is allowed for a drift of the machine where they were not, share. `not_recorded`: areas that a side says nothing of."""

    base: str
    cand: str
    passes_base: tuple[str, ...]
    passes_cand: tuple[str, ...]
    in_turns: bool
    differences: tuple[Difference, ...]
    not_recorded: tuple[str, ...]
    rows: tuple[Row, ...]
    confidence: float
    drift: float
    judged: int
    cautions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`pairs` in the order of the candidates. `gate`: the threshold as a share, None without one; `tripped`: what exceeded it."""

    version: int = COMPARE_VERSION
    confidence: float
    gate: float | None
    tripped: tuple[str, ...]
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. `gate`: least worsening that trips it, share. `drift`: what equal passes may differ by, share; None: as
    measured on machines like it (effect.SHARED, effect.CROWDED)."""

    gate: float | None = None
    drift: float | None = None


def compare(base: str, candidates: Sequence[str], question: Question) -> Comparison:
    """Raises UsageProblem, UnreadableInput, and NothingToAnalyze where nothing of the sides can be compared."""
    if not candidates:
        raise UsageProblem("nothing to compare with", hint="stepscope compare BASE CAND")
    if len(candidates) > MOST_CANDIDATES:
        raise UsageProblem(f"{len(candidates)} candidates", hint=f"{MOST_CANDIDATES} at the most")
    alpha = (1 - CONFIDENCE) / len(candidates)
    with opened_sides([base, *candidates]) as sides:
        pairs = tuple(_pair(sides[0], cand, alpha, question) for cand in sides[1:])
    gated = [row for pair in pairs for row in pair.rows if row.group in HEADLINE and row.change is not None]
    if not any(row.base is not None and row.cand is not None for pair in pairs for row in pair.rows):
        raise NothingToAnalyze(_nothing(pairs), hint="`stepscope health RUN` says what a recording can carry")
    if question.gate is not None and not gated:
        raise NothingToAnalyze(
            f"nothing to gate on was judged: {_reasons(pairs)}",
            hint="a gate reads latency, throughput, steps and phases",
        )
    tripped = tuple(f"{pair.cand}: {row.title}" for pair in pairs for row in pair.rows if row.gated)
    return Comparison(
        confidence=CONFIDENCE,
        gate=question.gate,
        tripped=tripped,
        pairs=pairs,
    )


def _nothing(pairs: Sequence[Pair]) -> str:
    """Why no number can be compared, and what is known to differ all the same."""
    named = dict.fromkeys(
        f"{shown(item.name, 40)} {shown(str(item.base), 30)} → {shown(str(item.cand), 30)}"
        for pair in pairs
        for item in pair.differences
        if item.area != "health"
    )
    differing = f". What differs: {'; '.join(list(named)[:_MOST_NAMED])}" if named else ""
    return f"the runs have no number in common: {_reasons(pairs)}{differing}"


def _reasons(pairs: Sequence[Pair]) -> str:
    reasons = dict.fromkeys(row.reason for pair in pairs for row in pair.rows if row.reason)
    return "; ".join(list(reasons)[:3]) or "neither has requests, a step ledger or device activity"


def _pair(base: Side, cand: Side, alpha: float, question: Question) -> Pair:
    metrics = [metric for read in _READERS for metric in read(base, cand)]
    reason = crowded((base, cand))
    terms = Terms(alpha=alpha / 2, machine=CROWDED if reason else SHARED, drift=question.drift, gate=question.gate)
    rows: dict[str, Row] = {}
    # half of the false verdicts for what people decide by, half for what explains it
    for family in (HEADLINE, DETAIL):
        found = judge([item for item in metrics if item.group in family], terms)
        rows |= {row.metric_id: row for row in found}
    plan = design(pass_starts(base), pass_starts(cand))
    named = tuple(differences(base, cand))
    return Pair(
        base=base.name, cand=cand.name, passes_base=_names(base), passes_cand=_names(cand), in_turns=bool(plan.rounds),
        differences=named, not_recorded=not_recorded(base, cand, named), confidence=1 - alpha,
        drift=math.expm1(terms.allowed(shortest_ns((base, cand)))[0]), judged=sum(row.change is not None for row in rows.values()),
        cautions=tuple(_cautions(base, cand, plan, terms, reason)),
        rows=tuple(sorted(rows.values(), key=lambda row: GROUPS.index(row.group))),
    )  # fmt: skip


_READERS: tuple[Callable[[Side, Side], Iterable[Metric]], ...] = (served, engine_steps, recorded)


def _names(side: Side) -> tuple[str, ...]:
    return tuple(item.name or "all" for item in side.passes)


def _cautions(base: Side, cand: Side, plan: Design, terms: Terms, reason: str | None) -> list[str]:
    """What the intervals do not cover, and what they had to."""
    found = []
    single = len(base.passes) <= 1 and len(cand.passes) <= 1
    shortest = shortest_ns((base, cand))
    if not plan.rounds:
        given = f"{100 * math.expm1(terms.allowed(shortest)[0]):.0f} %"
        why = "one pass of each side" if single else "passes that were not taken in turns"
        found.append(
            f"{why}: a drift of the machine between them looks like a difference. Times are given {given} for that "
            "(--drift); a larger drift is not covered. Passes in turns, A B A B, need no such allowance"
        )
    elif len({(base.passes[b].start_ns or 0) < (cand.passes[c].start_ns or 0) for b, c in plan.rounds}) == 1:
        found.append(
            "the same side came first in every round: a steady trend of the machine is in the difference. A B B A would be free of it"
        )
    if reason and terms.drift is None:
        found.append(f"{reason}: equal passes of such an engine have been seen to differ by a factor of 2 and more")
    if terms.drift is None and shortest is not None and shortest < LONG_NS:
        found.append(
            f"the shortest pass is {shortest / 1e9:.1f} s: what else the machine does averages out less than over "
            f"{LONG_NS // 10**9} s, and more is allowed for it"
        )
    if plan.rounds and all(part.read("devices").height for side in (base, cand) for part in side.parts):
        found.append("device numbers are of one recorded window a side: they have the allowance for drift")
    stores = {part.store.path for side in (base, cand) for part in side.parts}
    if len(stores) > 1 and len(base.parts) == len(cand.parts) == 1:
        found.append(
            "two starts of an engine: what differs from start to start (memory, placement, tuning) is in the difference"
        )
    return found
