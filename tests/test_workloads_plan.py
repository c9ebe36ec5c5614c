"""Plans: pure, seeded, validated, and the same on disk as in memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.workloads.plan import WORKLOADS, Plan, build_plan, read_plan, write_plan
from traces.errors import UnreadableInput, UsageProblem

ROOM = 1 << 20


@pytest.mark.parametrize("spec", ["agent", "chat", "batch", "agent:sessions=2,jitter=0.5", "batch:form=ids,rate=3"])
def test_the_canonical_spec_and_the_seed_make_the_plan_again(spec: str) -> None:
    plan = build_plan(spec, 7, max_context_tokens=ROOM)
    assert build_plan(plan.spec, 7, max_context_tokens=ROOM) == plan
    assert build_plan(spec, 8, max_context_tokens=ROOM).requests != plan.requests


def test_canonical_spec_names_every_option() -> None:
    assert build_plan("chat:think=250ms,sessions=2", 0, max_context_tokens=ROOM).spec == (
        "chat:jitter=0,output=32,sessions=2,stagger=0.3,system=200,think=0.25,turns=3,user=150"
    )


def test_plan_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from profiler.workloads.plan import build_plan, write_plan\n"
        "for spec in ('agent:jitter=0.3', 'chat', 'batch:rate=5'):\n"
        "    write_plan(build_plan(spec, 3, max_context_tokens=100000), Path(sys.argv[1]) / spec.partition(':')[0])\n"
    )
    written = []
    for hash_seed in ("1", "2"):
        directory = tmp_path / hash_seed
        directory.mkdir()
        subprocess.run(
            [sys.executable, "-c", program, str(directory)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).resolve().parents[1],
            check=True,
        )
        written.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {"agent", "chat", "batch"}


def test_every_session_keeps_its_text_when_sessions_are_added() -> None:
    few = build_plan("agent:sessions=2", 1, max_context_tokens=ROOM)
    many = build_plan("agent:sessions=5", 1, max_context_tokens=ROOM)
    assert many.requests[: few.n_requests] == few.requests


def test_agent_turns_extend_each_other_behind_a_shared_head() -> None:
    plan = build_plan(
        "agent:sessions=2,turns=3,system=111,task=22,observation=33,output=9,tools=2,tool=210,tool_wait=0.5,think=2",
        5,
        max_context_tokens=ROOM,
    )
    assert [request.index for request in plan.requests] == list(range(6))
    first, second = plan.sessions
    assert [request.turn for request in first] == [0, 1, 2]
    for earlier, later in itertools.pairwise(first):
        assert earlier.messages is not None and later.messages is not None
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert [message["role"] for message in later.messages[len(earlier.messages) :]] == ["assistant", "tool"]
    assert first[2].messages is not None and second[2].messages is not None and first[0].tools is not None
    assert [len(message["content"]) for message in first[2].messages] == [111, 22, 9, 33, 9, 33]
    assert [len(json.dumps(tool)) for tool in first[0].tools] == [210, 210]
    assert len({tool["function"]["name"] for tool in first[0].tools}) == 2
    assert first[0].messages is not None and second[0].messages is not None
    assert first[0].messages[0] == second[0].messages[0] and first[0].tools == second[2].tools
    assert first[0].messages[1] != second[0].messages[1]
    assert {(request.max_tokens, request.tool_wait_ns, request.think_ns) for request in plan.requests} == {
        (9, 500_000_000, 2_000_000_000)
    }
    assert [request.arrival_offset_ns for request in plan.requests] == [0, None, None, 500_000_000, None, None]


def test_agent_observations_as_user_messages_and_no_tools() -> None:
    plan = build_plan("agent:observation_role=user,tools=0,turns=2,sessions=1", 0, max_context_tokens=ROOM)
    messages = plan.requests[1].messages
    assert messages is not None
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert plan.requests[1].tools is None


def test_jitter_spreads_lengths_within_its_share() -> None:
    plan = build_plan("batch:n=200,prompt=100,output=50,jitter=0.2", 0, max_context_tokens=ROOM)
    prompts = [len(request.prompt or "") for request in plan.requests]
    assert min(prompts) >= 80 and max(prompts) <= 120 and len(set(prompts)) > 10
    assert {40 <= request.max_tokens <= 60 for request in plan.requests} == {True}


def test_batch_arrivals_are_poisson_at_the_rate_given() -> None:
    plan = build_plan("batch:n=4000,rate=20,prompt=1,output=1", 11, max_context_tokens=ROOM)
    arrivals = [request.arrival_offset_ns for request in plan.requests]
    gaps_s = [(b - a) / 1e9 for a, b in itertools.pairwise(arrivals) if a is not None and b is not None]
    mean = sum(gaps_s) / len(gaps_s)
    deviation = (sum((gap - mean) ** 2 for gap in gaps_s) / len(gaps_s)) ** 0.5
    assert arrivals[0] == 0
    assert mean == pytest.approx(0.05, rel=0.06)  # standard error of 4,000 exponential gaps: 1.6 %
    assert deviation / mean == pytest.approx(1.0, rel=0.06)


def test_batch_of_token_ids() -> None:
    plan = build_plan("batch:form=ids,n=2,prompt=17", 0, max_context_tokens=ROOM)
    ids = plan.requests[1].prompt_token_ids
    assert ids is not None and len(ids) == 17 and all(16 <= token < 256 for token in ids)
    assert plan.requests[1].prompt is None and plan.requests[1].messages is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("agnet", "unknown workload 'agnet'; known: agent, batch, chat"),
        ("", "unknown workload ''; known: agent, batch, chat"),
        ("chat:sesions=2", "unknown option 'sesions' of workload chat; known: jitter, output, sessions"),
        ("chat:sessions", "option sessions of workload chat has no value"),
        ("chat:turns=2,turns=3", "option turns of workload chat is given twice"),
        ("chat:turns=1.5", "option turns of workload chat: '1.5' is not a whole number"),
        ("chat:turns=many", "'many' is not a whole number"),
        ("chat:turns=0", "option turns of workload chat: 0 is out of bounds"),
        ("chat:turns=-1", "out of bounds"),
        ("chat:turns=1e99", "out of bounds"),
        ("chat:think=nan", "'nan' is not seconds"),
        ("chat:think=-0.1", "out of bounds"),
        ("chat:jitter=1.01", "out of bounds"),
        ("batch:form=bytes", "unknown 'bytes'; known: text, ids"),
        ("batch:n=1000000000", "out of bounds"),
        ("agent:sessions=100000,turns=10000", "would have 1,000,000,000 requests"),
    ],
)
def test_wrong_specs_are_named(spec: str, message: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        build_plan(spec, 0, max_context_tokens=ROOM)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("workload", [item.name for item in WORKLOADS])
def test_a_plan_that_does_not_fit_the_context_is_refused(workload: str) -> None:
    with pytest.raises(UsageProblem, match="tokens of context, the model has 100"):
        build_plan(workload, 0, max_context_tokens=100)


@settings(max_examples=30, deadline=None)
@given(
    sessions=st.integers(1, 4),
    turns=st.integers(1, 6),
    observation=st.integers(1, 80),
    jitter=st.sampled_from([0, 0.4]),
)
def test_no_prompt_is_longer_than_the_context_asked_for(
    sessions: int, turns: int, observation: int, jitter: float
) -> None:
    spec = f"agent:sessions={sessions},turns={turns},observation={observation},jitter={jitter},tools=1"
    needed = 32 + 8 * (2 * turns + 1) + 500 + int((60 + (turns - 1) * (observation + 64) + 64) * (1 + jitter))
    with pytest.raises(UsageProblem):
        build_plan(spec, 0, max_context_tokens=needed - 1)
    for request in build_plan(spec, 0, max_context_tokens=needed).requests:
        assert request.messages is not None and request.tools is not None
        length = sum(len(message["content"]) for message in request.messages)
        length += sum(len(json.dumps(tool)) for tool in request.tools)
        assert length + request.max_tokens <= needed


@pytest.mark.parametrize("spec", ["agent", "chat:sessions=2", "batch:n=3,form=ids", "batch:n=2,rate=1"])
def test_a_plan_reads_back_as_written(spec: str, tmp_path: Path) -> None:
    plan = build_plan(spec, 2, max_context_tokens=ROOM)
    write_plan(plan, tmp_path / "plan.jsonl")
    assert read_plan(tmp_path / "plan.jsonl") == plan
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.jsonl"]


def _written(tmp_path: Path) -> tuple[Path, Plan]:
    plan = build_plan("batch:n=3,prompt=4", 0, max_context_tokens=ROOM)
    write_plan(plan, tmp_path / "plan.jsonl")
    return tmp_path / "plan.jsonl", plan


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: text.rindex('{"index":2')], "holds 2 of 3 requests"),
        (lambda text: text[:-20], "is not a plan"),
        (lambda text: "", "is not a plan"),
        (lambda text: "[1]\n", "is not a plan"),
        (lambda text: text.replace('"max_tokens":32', '"unknown":1', 1), "is not a plan"),
        (lambda text: text.replace('"stepscope_plan":1', '"stepscope_plan":2'), "newer stepscope"),
    ],
)
def test_a_damaged_plan_is_refused(damage: object, message: str, tmp_path: Path) -> None:
    path, _ = _written(tmp_path)
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    with pytest.raises(UnreadableInput, match=message):
        read_plan(path)


def test_unknown_keys_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    path, plan = _written(tmp_path)
    path.write_text(path.read_text().replace('"index":', '"priority":3,"index":'))
    assert read_plan(path) == plan


def test_a_missing_plan_and_an_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        read_plan(tmp_path / "none.jsonl")
    with pytest.raises(UsageProblem, match="cannot write"):
        write_plan(_written(tmp_path)[1], tmp_path / "missing" / "plan.jsonl")
