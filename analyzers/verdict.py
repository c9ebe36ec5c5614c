"""Predicted against measured, with the noise of equal passes beside it: the verdict on a finding. Pure.

The measured gain is 1 - (changed / baseline), means of the engine's step time per pass. Its noise is the half width of the
95 % interval of a difference of two means whose spread is that of baseline passes among themselves and of changed passes
among themselves (pooled; Student's t with 2·(rounds - 1) degrees of freedom), as a share of the baseline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analyzers.finding import Interval, Proof
from traces.errors import NothingToAnalyze

PROOF_VERSION = 1
NO_FINDING = "none"  # the run compared with itself
BASELINE, CHANGED = "A", "B"
# Student's t, two-sided 95 %, by degrees of freedom; between two and beyond the last that of the fewer.
_T95 = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 14: 2.145, 16: 2.120, 18: 2.101}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a proof repeats and what it changes. `config` is runs.config, `predicted` and `interval` the finding's gain."""

    finding_id: str
    title: str
    config: Mapping[str, Any]
    change: Proof
    predicted: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass as measured; `side` is BASELINE or CHANGED."""

    side: str
    name: str
    step_ns: int
    steps: int
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """See the columns of table `proofs`."""

    version: int = PROOF_VERSION
    finding_id: str
    title: str
    verdict: str
    predicted_gain: float | None
    gain_low: float | None
    gain_high: float | None
    measured_gain: float
    noise: float
    baseline_spread: float
    changed_spread: float
    rounds: int
    baseline_ns: int
    changed_ns: int
    passes: tuple[Pass, ...]
    change: dict[str, Any]
    directory: str

    @property
    def change_is_some(self) -> bool:
        """Whether anything was changed at all."""
        return bool(self.change["differs"])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def judge(case: Case, passes: Sequence[Pass], directory: str) -> Verdict:
    """Predicted against measured. Raises NothingToAnalyze where a side has fewer than two passes."""
    baseline = [item.step_ns for item in passes if item.side == BASELINE]
    changed = [item.step_ns for item in passes if item.side == CHANGED]
    if min(len(baseline), len(changed)) < 2 or min(baseline) <= 0:
        raise NothingToAnalyze(
            "the step ledgers of the passes are not complete, so there is nothing to compare",
            hint="see engine.log in --out; `stepscope doctor` checks the hook",
        )
    whole = statistics.fmean(baseline)
    gain = 1 - statistics.fmean(changed) / whole
    noise = _noise(baseline, changed) / whole
    return Verdict(
        finding_id=case.finding_id, title=case.title, verdict=_word(gain, noise, case.interval), predicted_gain=case.predicted,
        gain_low=case.interval.low if case.interval else None, gain_high=case.interval.high if case.interval else None,
        measured_gain=gain, noise=noise, baseline_spread=_spread(baseline), changed_spread=_spread(changed),
        rounds=min(len(baseline), len(changed)), baseline_ns=round(whole), changed_ns=round(statistics.fmean(changed)),
        passes=tuple(passes), change=case.change.to_dict() | {"differs": _differs(case)}, directory=directory,
    )  # fmt: skip


def _differs(case: Case) -> list[str]:
    """What side B has instead, in words: options of the workload, engine arguments."""
    change, workload = case.change, case.config.get("workload")
    before = workload.get("spec") if isinstance(workload, dict) else None
    words = []
    if change.workload is not None:
        old = set(str(before).partition(":")[2].split(",")) if before else set()
        new = change.workload.partition(":")[2].split(",")
        words = [f"workload {part}" for part in new if part not in old] if old else [f"workload {change.workload}"]
    words += [f"without --engine-arg {item}" for item in change.without]
    return words + [f"with --engine-arg {item}" for item in change.engine_args]


def _noise(a: Sequence[int], b: Sequence[int]) -> float:
    """Half width of the 95 % interval of the difference of the means, in ns."""
    freedom = len(a) + len(b) - 2
    pooled = ((len(a) - 1) * statistics.variance(a) + (len(b) - 1) * statistics.variance(b)) / freedom
    t = next(value for degrees, value in sorted(_T95.items(), reverse=True) if degrees <= freedom)
    return t * math.sqrt(pooled * (1 / len(a) + 1 / len(b)))


def _spread(times: Sequence[int]) -> float:
    return (max(times) - min(times)) / statistics.fmean(times)


def _word(gain: float, noise: float, interval: Interval | None) -> str:
    """'no difference' within the noise; else by where the measured gain lies; 'unclear' where noise could move it inside."""
    if abs(gain) <= noise:
        return "no difference"
    if interval is None:
        return "unclear"  # a difference that nothing predicted
    if gain in interval:
        return "confirmed"
    return "unclear" if interval.low <= gain + noise and gain - noise <= interval.high else "refuted"
