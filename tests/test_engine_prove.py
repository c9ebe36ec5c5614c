"""A real vLLM on the CPU: a planted fault becomes a finding, its change is run, and the verdict is kept."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Ended, finish, left_behind, profile_real, start

from analyzers.findings import read_findings
from traces.store import TraceStore

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),  # the first test starts two engines, one after the other
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]

# long prompts and short answers: most of the engine's time is prefill, also on a busy machine
WORKLOAD = "agent:sessions=1,turns=6,system=1500,tools=2,tool=180,task=60,observation=200,output=6,tool_wait=0.02,timestamp=head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A run, and its proof."""

    run: Ended
    proof: Ended
    folder: Path

    @property
    def verdict(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.proof.out)
        return value


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Proved:
    folder = tmp_path_factory.mktemp("prove")
    run = profile_real(
        folder / "run", "--workload", WORKLOAD, "--no-trace", "--engine-arg", "block-size=32", "--quiet", "--json"
    )
    assert run.code == 0, run.err
    arguments = [
        "prove",
        str(folder / "run"),
        "agents.volatile-system",
        "--out",
        str(folder / "proof"),
        "--quiet",
        "--json",
    ]
    proof = finish(start(arguments), folder / "proof", timeout_s=500)
    assert proof.code == 0, proof.err
    return Proved(run=run, proof=proof, folder=folder)


def of_agents(store: TraceStore) -> dict[str, Any]:
    """The one finding of the agent loop; others may be there as well."""
    (finding,) = [row for row in read_findings(store).findings if row["finding_id"].startswith("agents.")]
    return finding


def test_the_planted_fault_is_found_with_a_gain_and_a_proof(proved: Proved) -> None:
    assert proved.run.manifest["engine_args"] == ["block-size=32"]
    with TraceStore.open(proved.folder / "run") as store:
        finding = of_agents(store)
        assert store.query(finding["evidence"]).height >= 5
    assert finding["finding_id"] == "agents.volatile-system"
    assert finding["severity"] == "critical"
    assert 0.2 < finding["gain_low"] < finding["predicted_gain"] < finding["gain_high"] <= 1
    assert "timestamp=no" in finding["proof"]["workload"]


def test_both_sides_did_the_same_work_and_only_one_of_them_reused_it(proved: Proved) -> None:
    passes = proved.verdict["passes"]
    assert [item["name"] for item in passes] == ["A1", "B1", "A2", "B2"]
    for item in passes:
        assert (item["requests"], item["failed"], item["output_tokens"]) == (6, 0, 36)
        assert (item["cached_tokens"] / item["prompt_tokens"] > 0.6) == (item["side"] == "B"), item
    for side in "AB":
        assert len({item["cached_tokens"] for item in passes if item["side"] == side}) == 1, (
            "passes do not feed each other"
        )


def test_the_prediction_is_not_refuted(proved: Proved) -> None:
    """Timing on a shared machine: that the gain lies in the interval is for benchmarks/prove.py to count."""
    verdict = proved.verdict
    assert verdict["verdict"] in ("confirmed", "unclear", "no difference"), verdict
    assert verdict["measured_gain"] > 0
    assert verdict["change"]["differs"] == ["workload timestamp=no"]


def test_the_verdict_is_kept_and_nothing_is_left(proved: Proved) -> None:
    with TraceStore.open(proved.folder / "run") as store:
        finding = of_agents(store)
        assert finding["proved"]["measured_gain"] == proved.verdict["measured_gain"]
    assert left_behind(proved.folder) == []
    assert not list(proved.folder.rglob("*.part*"))
