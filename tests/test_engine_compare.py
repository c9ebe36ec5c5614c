"""A real vLLM on the CPU: equal passes make no difference, a changed workload is found. One start of the engine."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from analyzers.compare import Pair, Question, compare
from analyzers.comparison.judge import CHANGED, SAME, UNJUDGED
from analyzers.presets import preset
from cli import Composition
from profiler.invocation import prepare
from profiler.progress import Silent
from profiler.trial import Trial, run_trials
from profiler.workloads.plan import build_plan
from traces.ingest import IngestOptions, ingest_once

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]

# Sessions begin apart: of two that begin together either may be the one that computes the common prefix, and then equal
# passes differ in how much of it is fresh.
PLAN = (
    "agent:sessions=8,turns=3,system=200,tools=1,tool=200,task=40,observation=200,output=8,tool_wait=0.02,stagger=0.5"
)
LONGER = PLAN.replace("observation=200", "observation=400")
EQUAL = 3  # pairs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """p0 … p5 are equal; x and y in turns, y with observations twice as long."""
    folder = tmp_path_factory.mktemp("compare") / "run"
    specs = [(f"p{number}", PLAN) for number in range(2 * EQUAL)]
    specs += [item for number in range(2) for item in ((f"x{number}", PLAN), (f"y{number}", LONGER))]
    plans = tuple((name, build_plan(spec, 0, max_context_tokens=4096)) for name, spec in specs)
    job = prepare(preset("tiny"), model="tiny", workload=PLAN, seed=0, window="all", out=folder, engine_args=())
    config = dataclasses.replace(job.config, trace=False, calibrate=False)
    (manifest,) = run_trials([Trial(config=config, warmup=job.warmup, passes=plans)], Silent())
    assert (manifest.status, manifest.hook_errors) == ("complete", [])
    ingest_once([str(folder)], folder / "run.duckdb", IngestOptions(finish=Composition().analysis()))
    return folder


def pair(base: object, cand: object) -> Pair:
    (found,) = compare(str(base), [str(cand)], Question()).pairs
    return found


def verdicts(found: Pair) -> dict[str, str]:
    return {row.metric_id: row.verdict for row in found.rows if row.verdict not in (SAME, UNJUDGED)}


def test_equal_passes_make_no_difference(run: Path) -> None:
    for number in range(EQUAL):
        found = pair(f"{run}@p{2 * number}", f"{run}@p{2 * number + 1}")
        assert found.differences == ()
        assert verdicts(found) == {}
        assert found.judged >= 5


def test_equal_passes_in_turns_make_no_difference(run: Path) -> None:
    found = pair(f"{run}@p0,p2,p4", f"{run}@p1,p3,p5")
    assert found.in_turns
    assert verdicts(found) == {}


def test_longer_observations_are_named_and_found_with_the_right_sign(run: Path) -> None:
    found = pair(f"{run}@x*", f"{run}@y*")
    (work,) = [item for item in found.differences if item.name == "prompt tokens"]
    # two observations of 200 tokens more in turn 2, one in turn 1, of eight sessions
    assert work.cand - work.base == pytest.approx(8 * 3 * 200, rel=0.05)
    rows = {row.metric_id: row for row in found.rows}
    fresh = rows["reuse.fresh"]
    assert fresh.verdict == CHANGED
    assert fresh.change is not None and fresh.change > 0
    assert fresh.low is not None and fresh.high is not None and fresh.low <= fresh.change <= fresh.high
