"""Equal passes against one running engine, compared: how many of the verdicts are false, and how far equal passes differ.

Sends the same plan again and again and compares neighbours (A/A). Prints what a machine like this allows for
(analyzers/comparison/effect.py: SHARED, CROWDED). Differences that have to be found: compare_ab.py.

    python benchmarks/compare_aa.py --pairs 20
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analyzers.compare import Pair, Question, compare  # noqa: E402
from analyzers.comparison.judge import SAME, UNJUDGED  # noqa: E402
from analyzers.presets import preset  # noqa: E402
from cli import Composition  # noqa: E402
from profiler.invocation import prepare  # noqa: E402
from profiler.progress import Terminal  # noqa: E402
from profiler.trial import Trial, run_trials  # noqa: E402
from profiler.workloads.plan import build_plan  # noqa: E402
from traces.ingest import IngestOptions, ingest_once  # noqa: E402

PLAN = (
    "agent:sessions=8,turns=5,system=200,tools=1,tool=200,task=40,observation=200,output=24,tool_wait=0.05,stagger=0.3"
)
CONTEXT = 4096
MOST_FALSE = 1  # of 20 pairs


def trial(
    out: Path, passes: Sequence[tuple[str, str]], *, engine_args: Sequence[str] = (), engine_env: Sequence[str] = ()
) -> Trial:
    """An engine and its passes, (name, workload)."""
    job = prepare(
        preset("tiny"), model="tiny", workload=PLAN, seed=0, window="all", out=out, engine_args=tuple(engine_args),
        engine_env=tuple(engine_env),
    )  # fmt: skip
    plans = tuple((name, build_plan(spec, 0, max_context_tokens=CONTEXT)) for name, spec in passes)
    return Trial(config=dataclasses.replace(job.config, trace=False, calibrate=False), warmup=job.warmup, passes=plans)


def ingested(out: Path) -> None:
    """The run directory as a database in it."""
    ingest_once([str(out)], out / "run.duckdb", IngestOptions(finish=Composition().analysis()))


def record(run: Path, pairs: int) -> None:
    """A run directory of equal passes, ingested. What is there stays."""
    if (run / "run.duckdb").exists():
        return
    (manifest,) = run_trials([trial(run, [(f"p{number:02d}", PLAN) for number in range(2 * pairs)])], Terminal())
    if manifest.status != "complete":
        sys.exit("the engine did not go through")
    ingested(run)


def one(base: str, cand: str) -> Pair:
    """One comparison."""
    (pair,) = compare(base, [cand], Question()).pairs
    return pair


def found(pair: Pair) -> list[str]:
    """What got a verdict, with its interval."""
    return [
        f"{row.title} {row.verdict} ({100 * (row.low or 0):+.0f} … {100 * (row.high or 0):+.0f} %)"
        for row in pair.rows if row.verdict not in (SAME, UNJUDGED)
    ]  # fmt: skip


def equal_passes(run: Path, pairs: int) -> int:
    """A/A: false verdicts by pair, and the spread of equal passes. Returns pairs with a false verdict."""
    wrong, judged = 0, Counter[str]()
    changes: dict[str, list[float]] = {}
    for number in range(pairs):
        pair = one(f"{run}@p{2 * number:02d}", f"{run}@p{2 * number + 1:02d}")
        verdicts = found(pair)
        wrong += bool(verdicts)
        for text in verdicts:
            print(f"  false: pair {number}: {text}")
        for row in pair.rows:
            judged[row.verdict] += 1
            if row.change is not None and row.unit != "share":
                changes.setdefault(row.metric_id, []).append(math.log1p(row.change))
        cautions = pair.cautions
    print(f"A/A: {wrong} of {pairs} pairs with a false verdict; {dict(judged)}")
    print("\n".join(f"  mind: {text}" for text in cautions))
    print(f"  {'equal passes, neighbours':<36}{'pairs':>6}{'typical':>9}{'largest':>9}")
    for name, values in changes.items():
        typical = math.sqrt(sum(value**2 for value in values) / len(values))
        print(f"  {name:<36}{len(values):>6}{math.expm1(typical):>9.1%}{math.expm1(max(map(abs, values))):>9.1%}")
    return wrong


def main() -> int:
    """Exit 1 where too many verdicts are false."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument(
        "--keep", type=Path, help="folder to keep the run directories in; those that are there are not recorded again"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        run = folder / "equal"
        record(run, options.pairs)
        facts = json.loads((run / "manifest.json").read_text())
        print(f"{facts['device_name']}, {facts['engine']} {facts['engine_version']}, {PLAN}")
        wrong = equal_passes(run, options.pairs)
    return int(wrong > MOST_FALSE * options.pairs / 20)


if __name__ == "__main__":
    sys.exit(main())
