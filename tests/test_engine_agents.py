"""A real vLLM on the CPU under loops with planted faults: every lost token has its cause, and its place."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analyzers.agents_reading import AgentsReport, read_agents
from analyzers.presets import preset
from cli import Composition
from profiler.invocation import prepare
from profiler.progress import Silent
from profiler.trial import Trial, run_trials
from profiler.workloads.plan import build_plan
from profiler.workloads.request import Plan, PlannedRequest
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]

BASE = "agent:sessions=1,turns=5,system=300,tools=5,tool=180,task=60,observation=320,output=8,tool_wait=0.02,stagger=0"
LONG = BASE.replace("tools=5", "tools=1").replace("observation=320", "observation=640")
BLOCK = 32
CONTEXT = 4096

# what is planted: pass → workload
PLANTED = {
    "clean": BASE.replace("turns=5", "turns=8"),
    "timestamp": f"{BASE},timestamp=head",
    "timestamp_tail": f"{BASE},timestamp=tail",
    "tools": f"{BASE},shuffle_tools=yes",
    "edited": f"{BASE},edit_at=2",
    "reasoning": LONG + ",reasoning=64",
    "compaction": LONG.replace("turns=5", "turns=6") + ",compact=2100",
    "documents": f"{BASE},documents=2,document=150",
    "documents_tail": f"{BASE},documents=2,document=150,documents_at=tail",
    "subagents": f"{BASE},subagents=2",
    "subagents_apart": f"{BASE},subagents=2,inherit=no",
}
# Contexts of 289, 577, 865 and 1,153 tokens: a whole number of blocks and one token.
CROWDED = "agent:sessions=4,turns=4,system=224,tools=0,task=60,observation=276,output=8,tool_wait=0.02,stagger=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Databases of the three engines, and what was sent."""

    folder: Path
    plans: dict[str, Plan]

    def report(self, engine: str, pass_name: str) -> AgentsReport:
        with TraceStore.open(self.folder / f"{engine}.duckdb") as store:
            return read_agents(store, pass_name)

    def rows(self, engine: str, sql: str) -> list[dict[str, Any]]:
        with TraceStore.open(self.folder / f"{engine}.duckdb") as store:
            return store.query(sql).to_dicts()


def trial(out: Path, plans: dict[str, Plan], *engine_args: str) -> Trial:
    job = prepare(
        preset("tiny"), model="tiny", workload="batch:n=1,prompt=16,output=2", seed=0, window="all", out=out,
        engine_args=(f"block-size={BLOCK}", *engine_args),
    )  # fmt: skip
    config = dataclasses.replace(job.config, trace=False, calibrate=False)
    return Trial(config=config, warmup=job.warmup, passes=tuple(plans.items()))


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    folder = tmp_path_factory.mktemp("agents")
    planted = {name: build_plan(spec, 0, max_context_tokens=CONTEXT) for name, spec in PLANTED.items()}
    crowded = {"crowded": build_plan(CROWDED, 0, max_context_tokens=CONTEXT)}
    off = {"off": build_plan(BASE, 0, max_context_tokens=CONTEXT)}
    manifests = run_trials([
        trial(folder / "planted", planted),
        trial(folder / "crowded", crowded, "max-model-len=1184", "num-gpu-blocks-override=38"),
        trial(folder / "off", off, "no-enable-prefix-caching"),
    ], Silent())  # fmt: skip
    assert [manifest.status for manifest in manifests] == ["complete"] * 3
    for manifest in manifests:
        assert (manifest.warnings, manifest.hook_errors) == ([], [])
        ingest_once(
            [str(folder / manifest.name)],
            folder / f"{manifest.name}.duckdb",
            IngestOptions(finish=Composition().analysis()),
        )
    return Trials(folder=folder, plans={**planted, **crowded, **off})


@pytest.mark.parametrize(
    ("engine", "name", "cause", "role"),
    [
        ("planted", "timestamp", "prefix_changed", "system"),
        ("planted", "timestamp_tail", "prefix_changed", "system"),
        ("planted", "tools", "prefix_changed", "tools"),
        ("planted", "edited", "prefix_changed", "observation"),
        ("planted", "reasoning", "prefix_changed", "assistant"),
        ("planted", "compaction", "prefix_changed", "user"),
        ("planted", "documents", "prefix_changed", "document"),
        ("crowded", "crowded", "evicted", None),
        ("off", "off", "caching_off", None),
    ],
)
def test_a_planted_fault_gets_the_lost_tokens(
    trials: Trials, engine: str, name: str, cause: str, role: str | None
) -> None:
    report = trials.report(engine, name)
    lost = {row["cause"]: row["tokens"] for row in report.causes}
    assert report.healthy is False
    assert lost[cause] > 300
    assert lost[cause] >= 0.95 * sum(lost.values()), lost
    (row,) = [item for item in report.causes if item["cause"] == cause]
    assert row["divergence_role"] == role


def test_a_clean_session_loses_block_remainders_only(trials: Trials) -> None:
    report = trials.report("planted", "clean")
    assert report.healthy is True
    assert [row["cause"] for row in report.causes] == ["block_remainder"]
    assert len(report.turns) == 8
    assert all(turn["lost"] < BLOCK for turn in report.turns)
    assert report.total["resent_output"] == 7 * 8, "what the plan lets the model say comes back once"


@pytest.mark.parametrize("name", ["documents_tail", "subagents", "subagents_apart"])
def test_what_breaks_no_prefix_is_healthy(trials: Trials, name: str) -> None:
    assert trials.report("planted", name).healthy is True


def test_a_subagent_that_inherits_reuses_its_parents_prefix(trials: Trials) -> None:
    for name, reused in (("subagents", True), ("subagents_apart", False)):
        turns = [
            turn for turn in trials.report("planted", name).turns if turn["parent_session_id"] and turn["turn"] == 0
        ]
        assert len(turns) == 2
        assert [turn["cached"] > 300 for turn in turns] == [reused] * 2, name


def test_the_pieces_tile_every_prompt_and_agree_with_the_engine(trials: Trials) -> None:
    for engine in ("planted", "crowded", "off"):
        rows = trials.rows(engine, """
            SELECT q.request_id, q.prompt_tokens, q.cached_tokens, sum(r.tokens)::BIGINT AS tiled,
                coalesce(sum(r.tokens) FILTER (WHERE piece = 'cached'), 0)::BIGINT AS cached,
                count(*) FILTER (WHERE r.start_token <> r.before) AS holes
            FROM requests AS q
            LEFT JOIN (
                SELECT *, coalesce(sum(tokens) OVER (PARTITION BY request_id ORDER BY start_token
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
                FROM reuse
            ) AS r USING (request_id)
            GROUP BY ALL
        """)  # fmt: skip
        assert len(rows) > 4
        for row in rows:
            assert (row["tiled"], row["cached"], row["holes"]) == (row["prompt_tokens"], row["cached_tokens"], 0), row


def rendered(request: PlannedRequest) -> str:
    """A prompt as the chat template of profiler/modeldir.py renders it: one character per token, marks as one."""
    tools = "".join(json.dumps(tool) + "\n" for tool in request.tools or ())
    text = f"\x00{tools}\x01" if tools else ""
    marks = {"system": "\x02", "user": "\x03", "assistant": "\x04", "tool": "\x05"}
    return text + "".join(f"{marks[item['role']]}{item['content']}\x01" for item in request.messages or ()) + "\x04"


@pytest.mark.parametrize("name", ["timestamp", "timestamp_tail", "tools", "edited", "reasoning", "documents"])
def test_the_prefix_breaks_at_the_token_where_the_texts_differ(trials: Trials, name: str) -> None:
    texts = [rendered(request) for request in trials.plans[name].requests]
    turns = trials.report("planted", name).turns
    checked = 0
    for at, turn in enumerate(turns):
        assert turn["prompt_tokens"] == len(texts[at])
        if turn["divergence_token"] is None:
            continue
        common = max(
            next(
                (i for i, (a, b) in enumerate(zip(texts[at], earlier, strict=False)) if a != b),
                min(len(texts[at]), len(earlier)),
            )
            for earlier in texts[:at]
        )
        assert turn["divergence_token"] == common
        checked += 1
    assert checked >= 2


def test_lost_is_what_was_sent_before_and_fresh_what_was_not(trials: Trials) -> None:
    """With a time of day in front of the system prompt, all that is new is the stamp and the last observation."""
    turns = trials.report("planted", "timestamp").turns
    before = [rendered(request) for request in trials.plans["timestamp"].requests]
    for at, turn in enumerate(turns[1:], start=1):
        added = len(before[at]) - len(before[at - 1])
        assert turn["fresh"] + turn["resent_output"] - added <= 24, "the stamp itself, and no more"
        assert turn["lost"] >= len(before[at - 1]) - 24 - turn["cached"]


def test_a_sessions_wall_time_is_the_sum_of_its_parts(trials: Trials) -> None:
    for name in PLANTED:
        for turn in trials.report("planted", name).turns:
            parts = sum(turn[key] for key in ("queue_ns", "prefill_ns", "decode_ns", "tool_ns", "client_ns"))
            assert abs(parts - turn["wall_ns"]) <= 1_000_000


def test_no_text_of_a_prompt_is_kept(trials: Trials) -> None:
    secret = trials.plans["clean"].requests[0].messages[0]["content"][:24]  # type: ignore[index]
    for path in trials.folder.rglob("*"):
        if path.is_file() and path.name not in ("engine.log",):
            assert secret.encode() not in path.read_bytes(), path
        if path.name == "manifest.json":
            assert "LEDGER_SECRET" not in path.read_text()
