"""A finding put to the test: predicted against measured, with the noise of equal passes beside it; table `proofs`.

The measured gain is 1 - (changed / baseline), means of the engine's step time per pass. Its noise is the half width of the
95 % interval of a difference of two means whose spread is that of baseline passes among themselves and of changed passes
among themselves (pooled; Student's t with 2·(rounds - 1) degrees of freedom), as a share of the baseline.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analyzers.finding import Interval, Proof
from traces.errors import NothingToAnalyze, UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import DATABASE_NAME, TraceStore, writing

PROOF_VERSION = 1
NO_FINDING = "none"  # the run compared with itself
BASELINE, CHANGED = "A", "B"
# Student's t, two-sided 95 %, by degrees of freedom; between two and beyond the last that of the fewer.
_T95 = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 14: 2.145, 16: 2.120, 18: 2.101}
SAME_WORK = 0.02  # output tokens of two passes may differ by so much: else they are not the same work


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
        return any(self.change.values())

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read_case(store: TraceStore, finding_id: str) -> Case:
    """What has to be run for a finding; NO_FINDING compares the run with itself.

    Raises NothingToAnalyze where the run cannot be repeated, or the finding has no proof; UsageProblem for an unknown one.
    """
    (run,) = store.query("SELECT source, config FROM runs WHERE run_id = ?", [store.run_id]).to_dicts()
    config = json.loads(run["config"]) if run["config"] else {}
    if finding_id == NO_FINDING:
        _check_repeatable(run["source"], config)
        return Case(
            finding_id=NO_FINDING, title="the run compared with itself", config=config, change=Proof(), predicted=None, interval=None
        )  # fmt: skip
    rows = {row["finding_id"]: row for row in store.query(
        "SELECT finding_id, title, predicted_gain, gain_low, gain_high, gain_of, proof FROM findings WHERE run_id = ? ORDER BY place",
        [store.run_id],
    ).to_dicts()}  # fmt: skip
    if finding_id not in rows:
        known = ", ".join(rows) or "none: the run has no findings"
        raise UsageProblem(f"no finding {finding_id[:80]!r} in this run", hint=f"known: {known}")
    _check_repeatable(run["source"], config)
    row = rows[finding_id]
    change = _change(row)
    known_gain = row["predicted_gain"] is not None and row["gain_of"] == "step_time"
    return Case(
        finding_id=finding_id, title=row["title"], config=config, change=change,
        predicted=row["predicted_gain"] if known_gain else None,
        interval=Interval(low=row["gain_low"], high=row["gain_high"]) if known_gain else None,
    )  # fmt: skip


def _change(row: Mapping[str, Any]) -> Proof:
    try:
        if row["proof"]:
            return Proof.from_dict(json.loads(row["proof"]))
    except (ValueError, AttributeError) as error:
        raise UsageProblem(
            f"the proof of {row['finding_id']} cannot be read", hint="compute it again with `stepscope analyze`"
        ) from error
    raise NothingToAnalyze(
        f"{row['finding_id']} has no change that could be run from here",
        hint="make the change (see its fix in `stepscope findings`), record again, and compare",
    )


def _check_repeatable(source: str | None, config: Mapping[str, Any]) -> None:
    """Raises NothingToAnalyze where the run was not made by `profile`, or by one that did not keep what is needed."""
    if source != "profile":
        raise NothingToAnalyze(
            "this run was read from a recording: what was sent and with which flags is not known, so it cannot be run again",
            hint="record with `stepscope profile`, whose run directory says how to repeat it",
        )
    workload = config.get("workload")
    spec = workload.get("spec") if isinstance(workload, dict) else None
    texts = (spec, config.get("model"), config.get("engine"))
    given = config.get("engine_args")
    if (
        not all(isinstance(text, str) for text in texts)
        or not isinstance(given, list)
        or not isinstance(config.get("seed"), int)
    ):
        raise NothingToAnalyze(
            "this run does not say how it was made (workload, seed, engine arguments), so it cannot be run again",
            hint="it was recorded by an older stepscope: record again",
        )


def measured(stores: Sequence[TraceStore]) -> list[Pass]:
    """The passes in the databases of a proof's run directories; names begin with their side. Round 0 is left out.

    Raises NothingToAnalyze where a pass failed, or passes did not do the same work.
    """
    passes = [
        Pass(side=row["pass"][0], name=row.pop("pass"), **row)
        for store in stores
        for row in store.named("proof_passes", "analyzers").to_dicts()
        if row["pass"][1:] != "0"
    ]
    failed = sum(item.failed for item in passes)
    if failed:
        raise NothingToAnalyze(
            f"{failed} requests failed, so passes cannot be compared", hint="see engine.log in --out"
        )
    outputs = [item.output_tokens for item in passes]
    if outputs and max(outputs) > (1 + SAME_WORK) * min(outputs):
        raise NothingToAnalyze(
            f"passes gave between {min(outputs)} and {max(outputs)} output tokens: not the same work",
            hint="a workload with fixed output lengths can be compared",
        )
    return passes


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
        passes=tuple(passes), change=case.change.to_dict(), directory=directory,
    )  # fmt: skip


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


_COLUMNS = (
    "run_id", "finding_id", "created_ns", "verdict", "predicted_gain", "gain_low", "gain_high", "measured_gain", "noise",
    "baseline_spread", "changed_spread", "rounds", "baseline_ns", "changed_ns", "passes", "change", "directory",
)  # fmt: skip


def keep(database: Path, run_id: str, verdict: Verdict, created_ns: int) -> None:
    """Add the verdict to table `proofs` of the run's database, atomically. Raises UsageProblem where it cannot be written."""
    values = verdict.to_dict() | {
        "run_id": run_id, "created_ns": created_ns, "change": json.dumps(verdict.change),
        "passes": json.dumps([asdict(item) for item in verdict.passes]),
    }  # fmt: skip
    with writing(database) as con:
        con.execute(
            f"INSERT INTO proofs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
            [values[name] for name in _COLUMNS],
        )


def conclude(case: Case, run_dirs: Sequence[Path], directory: Path, database: Path, run_id: str) -> Verdict:
    """Read the passes in `run_dirs`, judge, and keep the verdict in `database`. The passes' own databases stay beside them."""
    with contextlib.ExitStack() as stack:
        stores = []
        for run_dir in run_dirs:
            target = run_dir / DATABASE_NAME
            ingest_once([str(run_dir)], target, IngestOptions())
            stores.append(stack.enter_context(TraceStore.open(target)))
        passes = measured(stores)
    verdict = judge(case, passes, str(directory))
    keep(database, run_id, verdict, time.time_ns())
    return verdict
