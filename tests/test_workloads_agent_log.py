"""Workloads rebuilt from agents' logs: lengths, common prefixes, roles, waits, sub-agents; and logs that are broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_harness import profile_stub
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_logs import ROOM, S, command

from analyzers.agentlog import account
from analyzers.agentlog_pieces import Cache
from profiler.workloads.arrivals import planned_arrivals
from profiler.workloads.describe import describe
from profiler.workloads.plan import Plan, build_plan, read_plan, write_plan
from profiler.workloads.request import PlannedRequest
from traces.agentlogs.base import ROLES, Batch, Reading
from traces.agentlogs.measure import Measure
from traces.agentlogs.registry import read_agent_logs
from traces.errors import StepscopeError, UsageProblem

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SUFFIXES = (".json", ".jsonl", ".traj", ".csv")
PLACES = ("agent-logs", "workloads/coding_agent_raw", "workloads/tracelab")
SAMPLES = sorted(
    str(path.relative_to(DATA)) for place in PLACES for path in (DATA / place).rglob("*") if path.suffix in SUFFIXES
)
# What the log says each prompt shares reaches into the answer before; an answer is in the plan only where it comes back.
WITH_ANSWERS = "replay_examples"


def plan_of(path: Path | str, options: str = "", *, seed: int = 0, room: int = ROOM) -> Plan:
    return build_plan(f"agent:path={path}{options}", seed, max_context_tokens=room)


def batches_of(path: Path | str) -> list[Batch]:
    return list(read_agent_logs([str(path)], Reading(measure=Measure())))


def prompt(request: PlannedRequest) -> bytes:
    assert request.prompt_token_ids is not None
    return bytes(request.prompt_token_ids)


def common(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def quick_common(one: bytes, other: bytes) -> int:
    most = min(len(one), len(other))
    different = np.flatnonzero(np.frombuffer(one, np.uint8, most) != np.frombuffer(other, np.uint8, most))
    return int(different[0]) if len(different) else most


def cached_forever(requests: Sequence[PlannedRequest]) -> int:
    """Tokens that some prompt before began with too: blocks of one token, kept for ever.

    All tokens less the distinct beginnings of prompts, each of which was new once; of sorted prompts those are what a prompt
    has beyond what it shares with its neighbour.
    """
    texts = sorted(map(prompt, requests))
    assert len(set(texts)) == len(texts)  # a prompt that comes twice would be computed again for its last token
    new = len(texts[0]) + sum(len(b) - quick_common(a, b) for a, b in pairwise(texts))
    return sum(map(len, texts)) - new


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


@pytest.fixture(scope="module", params=SAMPLES or [None])
def sample(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("sample logs are not here: ../shared/data")
    return DATA / request.param


# ---- every sample log -------------------------------------------------------------------------------------------


def test_lengths_are_those_of_the_log_and_segments_tile(sample: Path) -> None:
    rows = [row for batch in batches_of(sample) for row in batch.requests.iter_rows(named=True)]
    plan = plan_of(sample)
    by_line: dict[tuple[int, int], int] = {}
    for row in rows:
        by_line[row["input_tokens"], max(1, row["output_tokens"])] = (
            by_line.get((row["input_tokens"], max(1, row["output_tokens"])), 0) + 1
        )
    for item in plan.requests:
        by_line[len(prompt(item)), item.max_tokens] -= 1
        assert item.segments is not None and sum(tokens for _, tokens in item.segments) == len(prompt(item))
        assert all(tokens > 0 for _, tokens in item.segments)
        assert {role for role, _ in item.segments} <= {"tools", "system", "user", "assistant", "observation"}
        assert all(a != b for (a, _), (b, _) in pairwise(item.segments))
        assert all(16 <= token < 240 for token in prompt(item))
    assert set(by_line.values()) == {0}
    assert [item.index for item in plan.requests] == list(range(len(rows)))
    names = {row["session"] for row in rows if row["session"]}
    assert not names & {item.session_id for item in plan.requests}  # names are text of the log


def test_the_hit_ratio_is_the_one_that_agentlog_gives(sample: Path) -> None:
    reading = Reading(measure=Measure())
    log = account(read_agent_logs([str(sample)], reading), Cache(block_tokens=1), reading)
    plan = plan_of(sample)
    found, told = cached_forever(plan.requests), log.totals["cached_tokens"]
    if WITH_ANSWERS in sample.name:
        reusable = 0
        for session in plan.sessions:
            before = 0
            for item in session:
                row = batches_of(sample)[0].requests.row(item.index, named=True)
                assert row["input_tokens"] == len(prompt(item))
                reusable += min(row["reusable_tokens"], before)
                before = len(prompt(item))
        assert found == reusable < told
    elif "from_source" in sample.name:  # tokens of one text differ by roundings from prompt to prompt
        assert abs(found - told) <= 0.001 * told and found != 0
    else:
        assert found == told


def test_consecutive_turns_have_in_common_what_the_log_says(sample: Path) -> None:
    told = _told(sample)
    plan = plan_of(sample)
    checked = 0
    for session in plan.sessions:
        for before, item in pairwise(session):
            wanted, slack = told[item.index]
            found = common(prompt(before), prompt(item))
            assert abs(found - min(wanted, len(prompt(before)))) <= slack
            checked += 1
    assert checked == plan.n_requests - len(plan.sessions)


def _told(path: Path) -> dict[int, tuple[int, int]]:
    """Of each request, tokens it has in common with the session's one before, by the log's own units or counts; and by how
    many tokens the roundings of a log without counts may move that."""
    found: dict[int, tuple[int, int]] = {}
    latest: dict[Any, tuple[dict[str, Any], list[int]]] = {}
    index = 0
    for batch in batches_of(path):
        rows = list(enumerate(batch.requests.iter_rows(named=True)))
        if batch.units is None and all(row["start_ns"] is not None for _, row in rows):
            rows.sort(key=lambda numbered: numbered[1]["start_ns"])
        for number, row in rows:
            chain: list[int] = []
            before = latest.get(row["session"])
            if batch.units is not None:
                part = slice(batch.units.offsets[number], batch.units.offsets[number + 1])
                chain = batch.units.chain[part].tolist()
                equal = 0
                while before and equal < min(len(chain), len(before[1])) and chain[equal] == before[1][equal]:
                    equal += 1
                exact = batch.units.content is None
                shared = int(batch.units.tokens[part][:equal].sum())
                found[index] = (shared, 0 if exact else -(-shared // 200))
            elif before:
                found[index] = (_by_lengths(before[0], row), 0)
            latest[row["session"]] = (row, chain)
            index += 1
    return found


def _by_lengths(before: dict[str, Any], row: dict[str, Any]) -> int:
    total, earlier = row["input_tokens"], before["input_tokens"]
    if row["reusable_tokens"] is not None:
        return int(row["reusable_tokens"])
    if row["compaction"] or total * 10 <= earlier * 9:
        return int(row["cached_tokens"] or 0)
    if total < earlier:
        return int(total if row["cached_tokens"] is None else row["cached_tokens"])
    return int(earlier)


@pytest.mark.parametrize("scale", [0.3, 0.01])
def test_scaled_and_cut_prompts_are_exactly_as_long_as_said(sample: Path, scale: float) -> None:
    room = 600
    whole, plan = plan_of(sample), plan_of(sample, f",length_scale={scale}", room=room)
    cut = 0
    for one, other in zip(whole.requests, plan.requests, strict=True):
        output = min(max(1, int(one.max_tokens * scale + 0.5)), room // 2)
        wanted = max(1, int(len(prompt(one)) * scale + 0.5))
        assert other.max_tokens == output
        assert len(prompt(other)) == min(wanted, room - output)
        assert sum(tokens for _, tokens in other.segments or ()) == len(prompt(other))
        cut += wanted > room - output
    said = [note for note in plan.notes if "prompts are cut" in note]
    assert bool(said) == bool(cut) and all(note.startswith(f"{cut:,} of ") for note in said)


def test_a_seed_makes_the_same_plan_again_and_another_the_same_structure(sample: Path, tmp_path: Path) -> None:
    few = ",turns=3,length_scale=0.1"
    one, again, other = plan_of(sample, few), plan_of(sample, few), plan_of(sample, few, seed=1)
    assert one == again
    for a, b in zip(one.requests, other.requests, strict=True):
        assert prompt(a) != prompt(b) or len(prompt(a)) < 4
        assert (len(prompt(a)), a.segments, a.max_tokens) == (len(prompt(b)), b.segments, b.max_tokens)
    write_plan(one, tmp_path / "plan.jsonl")
    assert read_plan(tmp_path / "plan.jsonl").requests == one.requests


# ---- prompts shown message by message ---------------------------------------------------------------------------


def chat(path: Path, *prompts: list[tuple[str, str]], session: str = "s", **more: Any) -> Path:
    """A log of requests with these messages; answers of 40 characters, no usage: characters / 4 are tokens."""
    return lines(path, *(
        {"session_id": session, "request": {"messages": [{"role": role, "content": text} for role, text in messages]},
         "response": {"id": f"{session}{number}", "choices": [{"message": {"role": "assistant", "content": "y" * 40}}]},
         **more}
        for number, messages in enumerate(prompts)
    ))  # fmt: skip


MESSAGES = st.tuples(st.sampled_from(("system", "user", "assistant", "tool")), st.integers(0, 5), st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(st.lists(MESSAGES, min_size=1, max_size=5), min_size=2, max_size=7), seed=st.integers(0, 3))
def test_prompts_share_exactly_their_leading_messages(
    prompts: list[list[tuple[str, int, int]]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def pieces(messages: list[tuple[str, int, int]]) -> list[tuple[str, str]]:
        return [(role, f"{kind}{place}" * 32) for role, kind, size in messages for place in range(size)]

    path = tmp_path_factory.mktemp("log") / "chat.jsonl"
    texts = [[(role, "".join(f"{kind}{place}" * 32 for place in range(size))) for role, kind, size in messages]
             for messages in prompts]  # fmt: skip
    plan = plan_of(chat(path, *texts), seed=seed)
    ids = [prompt(item) for item in plan.requests]
    for item, messages in zip(plan.requests, prompts, strict=True):
        assert len(prompt(item)) == 16 * len(pieces(messages))
        told: list[list[Any]] = []
        for role, _, size in messages:
            role = "observation" if role == "tool" else role
            if told and told[-1][0] == role:
                told[-1][1] += 16 * size
            else:
                told.append([role, 16 * size])
        assert [list(segment) for segment in item.segments or ()] == told
    for (one, a), (other, b) in combinations(zip(ids, map(pieces, prompts), strict=True), 2):
        assert common(one, other) == 16 * sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
        )
    meaning: dict[tuple[str, str], bytes] = {}  # equal pieces are equal text, wherever they stand
    for one, a in zip(ids, map(pieces, prompts), strict=True):
        for place, piece in enumerate(a):
            assert meaning.setdefault(piece, one[16 * place : 16 * place + 16]) == one[16 * place : 16 * place + 16]
    assert len(set(meaning.values())) == len(meaning)


def test_recorded_usage_rules_and_a_text_keeps_the_tokens_it_had_first(tmp_path: Path) -> None:
    def told(number: int, tokens: int, *texts: str) -> dict[str, Any]:
        usage = {"prompt_tokens": tokens, "completion_tokens": 9}
        messages = [{"role": "user", "content": text} for text in texts]
        return {"session_id": "s", "request": {"messages": messages}, "response": {"id": str(number), "usage": usage}}

    first, second = "a" * 640, "b" * 640
    path = lines(tmp_path / "log.jsonl", told(0, 100, first), told(1, 300, first, second), told(2, 40, first, second))
    plan = plan_of(path)
    one, two, three = map(prompt, plan.requests)
    assert [len(text) for text in (one, two, three)] == [100, 300, 40]
    assert (common(one, two), common(two, three)) == (100, 40)
    assert (
        "1 prompts are counted shorter than the same text was in an earlier prompt: what was new in them is left out"
        in plan.notes
    )


def test_an_edit_moves_nothing_but_what_was_edited(tmp_path: Path) -> None:
    system, task, tail = ("system", "s" * 640), ("user", "t" * 320), ("tool", "o" * 640)
    path = chat(tmp_path / "log", [system, task, tail], [system, ("user", "u" * 320), tail])
    one, two = plan_of(path).requests
    assert common(prompt(one), prompt(two)) == 160 and prompt(one)[240:] == prompt(two)[240:]
    assert one.segments == (("system", 160), ("user", 80), ("observation", 160))


def test_hundreds_of_ways_to_go_on_differ_by_the_second_token(tmp_path: Path) -> None:
    system = ("system", "s" * 64)
    plan = plan_of(chat(tmp_path / "log", *([system, ("user", f"{n:04d}" * 16)] for n in range(400))))
    shared = [quick_common(prompt(one), prompt(other)) for one, other in combinations(plan.requests, 2)]
    assert min(shared) == 16 and max(shared) <= 19
    few = plan_of(chat(tmp_path / "log", *([system, ("user", f"{n:04d}" * 16)] for n in range(224))))
    assert {quick_common(prompt(one), prompt(other)) for one, other in combinations(few.requests, 2)} == {16}


def test_sessions_without_a_name_are_found_as_agentlog_finds_them(tmp_path: Path) -> None:
    rows = [([1, 2], 20), ([1, 2, 3], 20), ([9], 10), ([1, 2, 3, 4], 64), ([9, 10], 30), ([1], 16), ([1, 2, 7], 40)]
    path = lines(tmp_path / "blocks.jsonl", *(
        {"input_length": 16 * len(ids), "output_length": out, "hash_ids": ids, "timestamp": 0} for ids, out in rows
    ))  # fmt: skip
    reading = Reading(measure=Measure())
    log = account(read_agent_logs([str(path)], reading), Cache(), reading)
    plan = plan_of(path)
    assert log.turns is not None
    assert [(item.session_id, item.turn) for item in plan.requests] == [
        ("log-0", 0), ("log-0", 1), ("log-1", 0), ("log-0", 2), ("log-1", 1), ("log-2", 0), ("log-2", 1),
    ]  # fmt: skip
    assert [item.turn for item in plan.requests] == log.turns.sort("order")["turn"].to_list()
    assert log.totals["sessions"] == len(plan.sessions)


# ---- lengths only -----------------------------------------------------------------------------------------------


def claude(
    path: Path, *turns: dict[str, Any], session: str = "claude", agent: str | None = None
) -> list[dict[str, Any]]:
    """Records of a session: before each answer a person's words or a tool's result. Times in seconds."""
    records: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        common = {"sessionId": session, "isSidechain": agent is not None, "agentId": agent, "uuid": f"{agent}{number}"}
        content = [{"type": "tool_result", "content": "x"}] if turn.get("tool") else "secret words"
        records.append({**common, "type": "user", "timestamp": turn["at"], "message": {"content": content}})
        if turn.get("compact"):
            records.append({**common, "type": "system", "subtype": "compact_boundary", "timestamp": turn["at"]})
        usage = {"input_tokens": turn["in"] - turn.get("cached", 0), "output_tokens": turn["out"]}
        usage["cache_read_input_tokens"] = turn.get("cached", 0)
        records.append({
            **common, "type": "assistant", "timestamp": turn["to"],
            "message": {"id": f"{session}-{agent}-{number}", "model": "m", "usage": usage},
        })  # fmt: skip
    return records


def test_a_closed_loop_with_waits_for_tools_and_people(tmp_path: Path) -> None:
    t = 1_700_000_000
    path = lines(tmp_path / "log.jsonl", *claude(
        tmp_path, {"at": t, "to": t + 2, "in": 100, "out": 20}, {"at": t + 5, "to": t + 6, "in": 150, "out": 10, "tool": True},
        {"at": t + 96, "to": t + 97, "in": 180, "out": 5}, {"at": t + 98, "to": t + 99, "in": 60, "out": 5, "compact": True},
    ))  # fmt: skip
    plan = plan_of(path)
    assert [(item.arrival_offset_ns, item.tool_wait_ns, item.think_ns) for item in plan.requests] == [
        (0, 3 * S, 0), (None, 0, 90 * S), (None, 0, S), (None, 0, 0),
    ]  # fmt: skip
    texts = [prompt(item) for item in plan.requests]
    assert [common(a, b) for a, b in pairwise(texts)] == [100, 150, 0]
    assert [item.segments for item in plan.requests] == [
        (("system", 100),),
        (("system", 100), ("assistant", 20), ("observation", 30)),
        (("system", 100), ("assistant", 20), ("observation", 30), ("assistant", 10), ("user", 20)),
        (("user", 60),),
    ]
    slow = plan_of(path, ",time_scale=0.5,max_wait=40s")
    assert [(item.tool_wait_ns, item.think_ns) for item in slow.requests] == [
        (1.5 * S, 0), (0, 20 * S), (0, S // 2), (0, 0)
    ]  # fmt: skip
    assert "1 waits are cut to 40 s (the longest was 90 s)" in slow.notes
    assert [len(prompt(item)) for item in plan_of(path, ",first=2").requests] == [100, 150]
    assert [item.think_ns for item in plan_of(path, ",turns=2").requests] == [0, 0]
    assert "secret" not in repr(plan) and "claude" not in repr(plan).replace(str(path), "")


def test_what_the_log_does_not_show_is_not_in_common_and_said(tmp_path: Path) -> None:
    t = 1_700_000_000
    steps = [{"at": t + n, "to": t + n, "in": 100 + n, "out": 1, "cached": 70, "compact": True} for n in range(3)]
    plan = plan_of(lines(tmp_path / "log.jsonl", *claude(tmp_path, *steps)))
    assert [common(prompt(a), prompt(b)) for a, b in pairwise(plan.requests)] == [70, 70]
    said = "70 tokens that first prompts had in common with prompts outside of the log are not in common here"
    assert said in plan.notes
    frame = planned_arrivals(f"agent:path={tmp_path / 'log.jsonl'}", 0).frame
    assert frame["prefix_tokens"].to_list() == [0, 70, 70]


def test_what_comes_back_of_an_answer_is_one_text(tmp_path: Path) -> None:
    t = 1_700_000_000
    steps = [{"at": t + n, "to": t + n, "in": 100 + 40 * n, "out": 25} for n in range(5)]
    plan = plan_of(lines(tmp_path / "log.jsonl", *claude(tmp_path, *steps)))
    assert [common(prompt(a), prompt(b)) for a, b in pairwise(plan.requests)] == [100, 140, 180, 220]


def test_sub_agents_start_with_their_turn_and_are_waited_for(tmp_path: Path) -> None:
    block = 8
    own = [{"t": 12.0, "in": 24, "out": 3, "hash_ids": [1, 2, 50], "api_time": 1.0},
           {"t": 15.0, "in": 32, "out": 3, "hash_ids": [1, 2, 50, 51], "api_time": 1.0}]  # fmt: skip
    late = [{"t": 41.0, "in": 8, "out": 3, "hash_ids": [70], "api_time": 1.0}]
    document = {"id": "private name", "block_size": block, "requests": [
        {"t": 0.0, "in": 16, "out": 4, "hash_ids": [1, 2], "api_time": 1.0},
        {"t": 10.0, "in": 24, "out": 4, "hash_ids": [1, 2, 3], "api_time": 1.0},
        {"t": 20.0, "in": 32, "out": 4, "hash_ids": [1, 2, 3, 4], "api_time": 1.0},
        {"t": 40.0, "in": 40, "out": 4, "hash_ids": [1, 2, 3, 4, 5], "api_time": 1.0},
        {"agent_id": "helper", "requests": own}, {"agent_id": "watcher", "requests": late},
    ]}  # fmt: skip
    path = tmp_path / "session.json"
    path.write_text(json.dumps(document))
    plan = plan_of(path)
    told = [(item.session_id, item.parent_session_id, item.turn, item.after) for item in plan.requests]
    assert told == [
        ("log-0", None, 0, ()), ("log-0", None, 1, ()), ("log-0", None, 2, (5,)), ("log-0", None, 3, ()),
        ("log-0.0", "log-0", 0, (1,)), ("log-0.0", "log-0", 1, ()), ("log-0.1", "log-0", 0, (3,)),
    ]  # fmt: skip
    assert [item.arrival_offset_ns for item in plan.requests] == [0] + [None] * 6
    assert common(prompt(plan.requests[4]), prompt(plan.requests[3])) == 16
    assert describe(
        planned_arrivals(f"agent:path={path}", 0), spec="", seed=0
    ).prefix.infinite_tokens == cached_forever(plan.requests)
    assert [item.session_id for item in plan_of(path, ",turns=2").requests] == ["log-0", "log-0", "log-0.0", "log-0.0"]
    assert "1 sub-agents are left out with the turns that started them" in plan_of(path, ",turns=2").notes
    assert "private" not in repr(plan)


def test_sessions_that_claim_to_have_started_each_other_wait_for_nobody(tmp_path: Path) -> None:
    for own, other in (("a", "b"), ("b", "c"), ("c", "a")):
        usage = {"input_tokens": 50, "output_tokens": 5}
        lines(
            tmp_path / f"{own}.jsonl",
            {"type": "session_meta", "payload": {"id": own, "forked_from_id": other}},
            {"type": "event_msg", "payload": {"type": "token_count", "info": {"last_token_usage": usage}}},
        )
    plan = plan_of(tmp_path)
    roots = [item for item in plan.requests if item.parent_session_id is None]
    assert len(plan.requests) == 3 and len(roots) == 1 and roots[0].after == ()
    assert "the log does not say when 2 sub-agents began: they follow their parents' first turns" in plan.notes
    ended: set[int] = set()
    while ready := [item for item in plan.requests if item.index not in ended and set(item.after) <= ended]:
        ended |= {item.index for item in ready}
    assert len(ended) == 3  # nothing waits for ever


# ---- options ----------------------------------------------------------------------------------------------------


def test_starts_of_sessions(tmp_path: Path) -> None:
    t = 1_700_000_000
    turn = {"in": 10, "out": 1}
    records = [claude(tmp_path, {"at": t + n, "to": t + n, **turn}, session=f"s{n}") for n in (0, 30, 4)]
    path = lines(tmp_path / "log.jsonl", *(item for session in records for item in session))
    spaced = plan_of(path, ",stagger=2")
    assert [item.arrival_offset_ns for item in spaced.requests] == [0, 2 * S, 4 * S]
    assert spaced.notes[-1] == "sessions begin 2 s apart; starts=log keeps the distances of the log"
    logged = plan_of(path, ",starts=log,time_scale=2")
    assert sorted(item.arrival_offset_ns or 0 for item in logged.requests) == [0, 8 * S, 60 * S]
    assert len(plan_of(path, ",sessions=2").sessions) == 2
    many = lines(tmp_path / "many.jsonl", *(item for n in range(40) for item in claude(
        tmp_path, {"at": t + n, "to": t + n, **turn}, session=f"s{n}")))  # fmt: skip
    assert [item.arrival_offset_ns for item in plan_of(many).requests] == [n * S // 2 for n in range(40)]


def test_a_timestamp_at_the_head_leaves_nothing_in_common(tmp_path: Path) -> None:
    system = ("system", "s" * 640)
    path = chat(tmp_path / "log", [system], [system, ("user", "t" * 320)])
    plain, stamped = plan_of(path), plan_of(path, ",timestamp=head")
    one, two = map(prompt, stamped.requests)
    assert (len(one), len(two)) == (160, 240) and common(one, two) == 0
    assert one[16:] == two[16:160] == prompt(plain.requests[0])[16:]
    assert stamped.requests[0].segments == plain.requests[0].segments
    assert "each prompt begins with a time of its own" in stamped.notes[-1]
    assert planned_arrivals(f"agent:path={path},timestamp=head", 0).frame["prefix_tokens"].to_list() == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "shuffle_tools=yes",
            "option shuffle_tools is of made-up sessions: with path= the log says what they are like",
        ),
        ("system=300", "option system is of made-up sessions"),
        ("timestamp=tail", "unknown 'tail'; known: no, head"),
        ("rate_scale=2", "unknown option 'rate_scale' of workload agent"),
        ("format=nonsense", "unknown format nonsense"),
        ("tokenizer=/nowhere", "there is no tokenizer at /nowhere"),
        ("starts=log", "the log does not say when 1 of its sessions began"),
        ("length_scale=0", "out of bounds"),
    ],
)
def test_options_that_do_not_fit(options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem) as raised:
        plan_of(chat(tmp_path / "log", [("user", "x")]), f",{options}")
    assert message in raised.value.message and raised.value.hint


def test_without_a_path_nothing_has_changed() -> None:
    assert build_plan("agent:sessions=1,turns=2,timestamp=tail", 0, max_context_tokens=ROOM).n_requests == 2
    with pytest.raises(UsageProblem, match="has no value"):
        plan_of("")


# ---- broken logs ------------------------------------------------------------------------------------------------


HOSTILE = [
    b"", b"\0" * 400, b"{" * 5000, b"[" * 100_000, b'{"messages":[]}', b'{"request":{"messages":[{"role":"user"}]}}',
    b"input_length,output_length\n1,2\n", b'{"input_length":1,"output_length":1,"hash_ids":[1,2,3,4]}\n' * 3,
    b'{"input_length":-1,"output_length":1,"hash_ids":[1]}\n' * 3, b"trace_id,agent,in_tokens,out_tokens\na,main,x,y\n",
    b"session_id,round_idx,prefix_len,input_len,output_len\n0,0,9999999999999,1,1\n",
    json.dumps({"block_size": 64, "requests": [{"in": 3, "out": 1, "hash_ids": [1, 2]}]}).encode(),
    json.dumps({"block_size": 1 << 40, "requests": []}).encode(),
    b'{"type":"user","sessionId":"\\ud800","message":{}}\n' * 3,
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_a_file_without_requests_is_refused_with_a_reason(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(raw)
    with pytest.raises(StepscopeError) as raised:
        plan_of(path)
    assert raised.value.hint and str(path) in raised.value.message


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whatever_numbers_a_log_has_the_plan_fits_or_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counts = st.one_of(st.integers(0, 90), st.sampled_from((-1, 1 << 31, 1 << 70, "x", None, 1.5, True)))
    times = st.one_of(st.integers(0, 99), st.sampled_from((None, -1, 1e300, "2026-01-01", 1.7e9)))
    names = st.sampled_from(("a", "b", "\x1b[31m", "", None, 7))
    records = data.draw(st.lists(st.fixed_dictionaries({
        "session_id": names, "round_index": st.integers(0, 9), "input_tokens_total": counts, "output_tokens": counts,
        "prefix_tokens": counts, "timing_events": st.lists(st.fixed_dictionaries({"timestamp": times}), max_size=2),
        "current_tool_result_count": counts, "tools": st.lists(st.fixed_dictionaries({"tool_wall_latency_ms": times}), max_size=1),
    }), min_size=1, max_size=8))  # fmt: skip
    path = lines(tmp_path_factory.mktemp("log") / "log.jsonl", *records)
    options = data.draw(st.sampled_from(("", ",length_scale=0.1", ",turns=1", ",first=2,sessions=1", ",starts=log")))
    try:
        plan = plan_of(path, options, room=100)
    except StepscopeError:
        return
    for item in plan.requests:
        assert prompt(item) and len(prompt(item)) + item.max_tokens <= 100
        assert sum(tokens for _, tokens in item.segments or ()) == len(prompt(item))
        assert item.tool_wait_ns >= 0 and item.think_ns >= 0 and (item.arrival_offset_ns or 0) >= 0
    for session in plan.sessions:
        assert [item.turn for item in session] == list(range(len(session)))


def test_too_many_requests_or_tokens_are_refused_while_reading(tmp_path: Path) -> None:
    one = {"input_length": 300_000_000, "output_length": 1, "hash_ids": [1]}
    path = lines(tmp_path / "log.jsonl", one, one)
    with pytest.raises(UsageProblem, match="have 600,000,000 tokens in all"):
        plan_of(path)
    assert len(prompt(plan_of(path, ",first=1,length_scale=0.0001").requests[0])) == 30_000


# ---- the commands -----------------------------------------------------------------------------------------------


def test_describe_says_what_would_be_sent(tmp_path: Path) -> None:
    system = ("system", "s" * 640)
    path = chat(tmp_path / "log", [system], [system, ("user", "t" * 320)])
    ended = command("workload", f"agent:path={path}", "--describe", "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["requests"], told["sessions"], told["closed"]) == (2, 1, True)
    assert (told["prompt_tokens"]["total"], told["prefix"]["infinite_tokens"]) == (400, 160)
    assert told["source"]["formats"] == {"chat": 2} and "prompts" not in told
    shown = command("workload", f"agent:path={path}", "--length-scale", "0.5")
    assert shown.returncode == 0 and max(map(len, shown.stdout.splitlines())) <= 100
    refused = command("workload", f"agent:path={path},tools=3")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        2, "error: option tools is of made-up sessions: with path= the log says what they are like",
    )  # fmt: skip
    assert command("workload", f"agent:path={tmp_path / 'none'}").returncode == 3


def test_a_rebuilt_log_is_sent_to_an_engine(tmp_path: Path) -> None:
    system = ("system", "secret " * 40)
    path = chat(tmp_path / "log", [system], [system, ("user", "t" * 320)], [system, ("user", "u" * 64)])
    ended = profile_stub(
        tmp_path, "--workload", f"agent:path={path}", "--quiet", "--keep-text", "--length-scale", "0.5"
    )
    assert ended.code == 0, ended.err
    records = [json.loads(line) for line in (ended.run_dir / "requests.jsonl").read_text().splitlines()]
    sent = [item for item in records if item["pass"] == "profiled"]
    assert [(item["session_id"], item["turn"], item["status"]) for item in sent] == [
        ("log-0", turn, "ok") for turn in range(3)
    ]  # fmt: skip
    plan = read_plan(ended.run_dir / "plan.jsonl")
    assert [len(prompt(item)) for item in plan.requests] == [35, 75, 43]
    assert plan.requests[1].segments == (("system", 35), ("user", 40))
    kept = [file for file in ended.run_dir.rglob("*") if file.is_file() and b"secret" in file.read_bytes()]
    assert kept == []
    assert "tokens of 3 requests are not recorded" in ended.err


def test_roles_of_a_plan_are_those_of_the_reader() -> None:
    assert set(ROLES) == {"tools", "system", "user", "assistant", "tool"}
