"""Planted differences, compared: is each named first, found with the right sign, and does its interval hold the truth?

Passes of two sides in turns, twelve rounds. Rounds 0-3, 4-7 and 8-11 are compared, each on its own, as a user would who has
four passes of each side. The truth of each comparison is what the other eight rounds say, which it has not seen.

- observations twice as long, sent to one engine;
- an engine that computes 64 tokens per step instead of 2,048;
- an engine with three times as many threads as there are processors, instead of one thread (what becomes of a container that
  counts the threads of its host).

    python benchmarks/compare_ab.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analyzers.compare import Pair  # noqa: E402
from analyzers.comparison.judge import SAME, UNJUDGED, Row  # noqa: E402
from benchmarks.compare_aa import PLAN, found, ingested, one, trial  # noqa: E402
from profiler.progress import Terminal  # noqa: E402
from profiler.trial import run_trials  # noqa: E402

LONGER = PLAN.replace("observation=200", "observation=400")
DECODING = PLAN.replace("output=24", "output=128")  # mostly decode steps, and passes of some seconds more
ROUNDS, FOLD = 12, 4
FEW, MANY = 64, 2048  # tokens per step
PRINTED = 0.0005  # half of the last digit of a share
LEAST_COVERED = 0.9  # of intervals at 95 %, of which the truth is known from eight rounds only


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """`named`: the difference that has to be named first. `effects`: numbers that have to be found, and whether they grow."""

    title: str
    folder: str
    named: str
    plan: str = PLAN
    base: Mapping[str, tuple[str, ...]]
    cand: Mapping[str, tuple[str, ...]] | None  # None: another plan, on the same engine
    effects: Mapping[str, bool]


def planted(threads: int) -> list[Planted]:
    """What is tried on a machine of `threads` processors."""

    def bound(count: int) -> dict[str, tuple[str, ...]]:
        return {"engine_env": ("VLLM_CPU_OMP_THREADS_BIND=nobind", f"OMP_NUM_THREADS={count}")}

    few, many = ({"engine_args": (f"max-num-batched-tokens={tokens}",)} for tokens in (FEW, MANY))
    return [
        Planted(title="observations twice as long", folder="longer", named="prompt tokens", base=many, cand=None,
                effects={"reuse.fresh": True}),
        Planted(title=f"max-num-batched-tokens {MANY} → {FEW}", folder="chunks", named="max-num-batched-tokens", base=many, cand=few,
                effects={"steps.engine.prefill_tokens_per_step": False}),
        Planted(title=f"threads 1 → {3 * threads}", folder="threads", named="OMP_NUM_THREADS", plan=DECODING, base=bound(1),
                cand=bound(3 * threads), effects={"latency.tpot_mean": True, "latency.e2e_mean": True}),
    ]  # fmt: skip


def record(item: Planted, folder: Path) -> None:
    """Run directories a and b (or one with both plans), ingested; what is there stays."""
    sides = [(folder / "a", item.base)] + ([(folder / "b", item.cand)] if item.cand is not None else [])
    if all((out / "run.duckdb").exists() for out, _ in sides):
        return
    if item.cand is None:
        passes = [pair for number in range(ROUNDS) for pair in ((f"a{number}", PLAN), (f"b{number}", LONGER))]
        trials = [trial(folder / "a", passes, **item.base)]
    else:
        trials = [
            trial(out, [(f"{out.name}{number}", item.plan) for number in range(ROUNDS)], **given)
            for out, given in sides
        ]
    if any(manifest.status != "complete" for manifest in run_trials(trials, Terminal())):
        sys.exit("an engine did not go through")
    for out, _ in sides:
        ingested(out)


def folds(item: Planted, folder: Path) -> Iterator[tuple[Pair, Pair]]:
    """Comparisons of four rounds, each with that of the other eight."""
    other = folder / ("a" if item.cand is None else "b")

    def over(rounds: list[int]) -> Pair:
        base, cand = (",".join(f"{side}{number}" for number in rounds) for side in "ab")
        return one(f"{folder / 'a'}@{base}", f"{other}@{cand}")

    for first in range(0, ROUNDS, FOLD):
        seen = list(range(first, first + FOLD))
        yield over(seen), over([number for number in range(ROUNDS) if number not in seen])


def covered(row: Row, truth: Row) -> bool | None:
    """Whether the interval of `row` holds the change that other rounds show; None where either is not known."""
    if row.low is None or row.high is None or truth.change is None:
        return None
    printed = PRINTED if row.unit == "share" else 0.0  # counts that repeat exactly have an interval without width
    return row.low - printed <= truth.change <= row.high + printed


def judged(item: Planted, folder: Path) -> tuple[bool, list[bool]]:
    """Whether the difference was named first and its effects found in every comparison; and which intervals held the truth,
    of all numbers that were judged."""
    right, inside, far = True, list[bool](), list[str]()
    for number, (seen, unseen) in enumerate(folds(item, folder)):
        rows, truths = ({row.metric_id: row for row in pair.rows} for pair in (seen, unseen))
        named = bool(seen.differences) and seen.differences[0].name == item.named
        print(
            f"{item.title}, rounds {FOLD * number}-{FOLD * number + FOLD - 1}: named first {seen.differences[0].name}"
        )
        print("\n".join(f"    {text}" for text in found(seen)))
        for metric_id, grows in item.effects.items():
            row, truth = rows[metric_id], truths[metric_id]
            seen_it = row.verdict not in (SAME, UNJUDGED) and row.change is not None and (row.change > 0) == grows
            print(f"  {'found' if seen_it else 'MISSED'}: {told(row)}; the other rounds: {told(truth)}")
            right = right and seen_it and named
        for metric_id, row in rows.items():
            hit = covered(row, truths[metric_id]) if metric_id in truths else None
            inside += [hit] if hit is not None else []
            far += [f"{told(row)}; the other rounds: {told(truths[metric_id])}"] if hit is False else []
    print(f"{item.title}: {sum(inside)} of {len(inside)} intervals hold what the other rounds say")
    print("\n".join(f"  outside: {text}" for text in far))
    return right, inside


def told(row: Row) -> str:
    """A row in a line."""
    if row.change is None or row.low is None or row.high is None:
        return f"{row.title}: {row.verdict}"
    unit = "points" if row.unit == "share" else "%"
    return f"{row.title} {100 * row.change:+.1f} {unit} ({100 * row.low:+.1f} to {100 * row.high:+.1f})"


def main() -> int:
    """Exit 1 where a planted difference is not named first, not found, or too few intervals hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder of the run directories; those in it are not recorded again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        right, inside = True, list[bool]()
        for item in planted(os.cpu_count() or 1):
            record(item, folder / item.folder)
            facts = json.loads((folder / item.folder / "a" / "manifest.json").read_text())
            print(f"{facts['device_name']}, {facts['engine']} {facts['engine_version']}, {item.plan}")
            found_it, held = judged(item, folder / item.folder)
            right, inside = right and found_it, inside + held
        share = statistics.fmean(inside)
        print(
            f"all: {sum(inside)} of {len(inside)} intervals hold what the other rounds say ({share:.0%}); load {os.getloadavg()[0]:.1f}"
        )
    return int(not right or share < LEAST_COVERED)


if __name__ == "__main__":
    sys.exit(main())
