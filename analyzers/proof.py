"""A finding put to the test: what of a run is repeated, what its passes measured, and the verdict in table `proofs`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analyzers.finding import Interval, Proof
from analyzers.verdict import NO_FINDING, Case, Pass, Verdict, judge
from traces.errors import NothingToAnalyze, UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import DATABASE_NAME, TraceStore, writing

SAME_WORK = 0.02  # output tokens of two passes may differ by so much: else they are not the same work


def read_case(store: TraceStore, finding_id: str) -> Case:
    """What has to be run for a finding; NO_FINDING compares the run with itself.

    Raises NothingToAnalyze where the run cannot be repeated, or the finding has no proof; UsageProblem for an unknown one.
    """
    (run,) = store.query("SELECT source, config FROM runs WHERE run_id = ?", [store.run_id]).to_dicts()
    known = json.loads(run["config"]) if run["config"] else {}
    config = known if isinstance(known, dict) else {}
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
    numbers = (row["predicted_gain"], row["gain_low"], row["gain_high"])
    known_gain = None not in numbers and row["gain_of"] == "step_time"
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


def check_writable(database: Path) -> None:
    """Before minutes of work: raises UsageProblem where the verdict could not be kept."""
    if not os.access(database.parent, os.W_OK):
        raise UsageProblem(
            f"cannot write to {database.parent}, where the verdict is kept", hint="copy the run and prove the copy"
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
