"""Replays and arrivals without a log: synthesized prompts, transforms, pools, closed loops, drawn times and lengths."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_logs import ROOM, S, mooncake, shared

from cli import Composition
from profiler.workloads.arrivals import Arrivals, planned_arrivals, planned_frame
from profiler.workloads.describe import describe
from profiler.workloads.lengths import parse_lengths
from profiler.workloads.plan import build_plan
from profiler.workloads.synthesis import boundary, fitted, requests_of
from profiler.workloads.text import stream
from traces.errors import UnreadableInput, UsageProblem
from traces.requestlogs.base import PLANNED_COLUMNS


def ids(plan: Any) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in plan.requests]


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# Prompts


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 512)), min_size=2, max_size=6
    ),
    scale=st.sampled_from([1.0, 0.5, 0.1, 0.037, 1.3]),
)
def test_prompts_are_as_long_as_planned_and_share_their_leading_blocks(
    prompts: list[tuple[list[int], int]], scale: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # an id names a block by what stands before it, as in the traces; a last block is as long wherever it is the last
    number: dict[tuple[int, ...], int] = {}
    requests = []
    for blocks, _ in prompts:
        paths = [tuple(blocks[: n + 1]) for n in range(len(blocks))]
        chained = tuple(number.setdefault(path, len(number)) for path in paths)
        requests.append((0, len(blocks) * 512, chained))
    spec = mooncake(tmp_path_factory.mktemp("log") / "log.jsonl", *requests)
    plan = build_plan(f"{spec},length_scale={scale}", 1, max_context_tokens=ROOM)
    for request, (_, tokens, _) in zip(plan.requests, requests, strict=True):
        assert len(request.prompt_token_ids or ()) == max(1, int(tokens * scale + 0.5))
        assert all(16 <= token < 240 for token in request.prompt_token_ids or ())
    for (one, a), (other, b) in itertools.combinations(zip(ids(plan), requests, strict=True), 2):
        blocks = next(
            (n for n, (x, y) in enumerate(zip(a[2], b[2], strict=False)) if x != y), min(len(a[2]), len(b[2]))
        )
        assert common(one, other) == boundary(blocks, 512 * scale)


def test_ten_thousand_blocks_are_all_different(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", *((0, 5, (n,)) for n in range(10_000)))
    prompts = ids(build_plan(spec, 0, max_context_tokens=ROOM))
    assert len(set(prompts)) == 10_000
    assert len({prompt[:2] for prompt in prompts}) == 10_000  # the first two ids tell them apart


def test_a_partial_last_block_and_ids_that_end_early(tmp_path: Path) -> None:
    path = tmp_path / "log"
    keys = {"timestamp": 0, "output_length": 1}
    path.write_text("".join(json.dumps(keys | more) + "\n" for more in (
        {"input_length": 40, "hash_ids": [1, 2]}, {"input_length": 45, "hash_ids": [1, 2]}, {"input_length": 20},
        {"input_length": 24, "hash_ids": [1, 2]},
    )))  # fmt: skip
    one, two, three, four = ids(build_plan(f"replay:path={path}", 0, max_context_tokens=ROOM))
    assert [len(prompt) for prompt in (one, two, three, four)] == [40, 45, 20, 24]
    assert common(one, two) == 32 and common(one, four) == 24 and common(one, three) == 0


def test_turns_of_a_session_go_on_where_the_log_says() -> None:
    path = shared("tracelab/replay_examples_multi_session_large.csv")
    plan = build_plan(f"replay:path={path}", 0, max_context_tokens=ROOM)
    frame = planned_frame(f"replay:path={path}", 0)
    prompts = dict(zip(frame.select("session_id", "turn").rows(), ids(plan), strict=True))
    for row in frame.filter(pl.col("turn") > 0).iter_rows(named=True):
        before = prompts[row["session_id"], row["turn"] - 1]
        now = prompts[row["session_id"], row["turn"]]
        assert common(before, now) == min(row["prefix_tokens"], len(before)) and len(now) == row["input_tokens"]
    for session in plan.sessions:
        assert [request.arrival_offset_ns is None for request in session] == [False] + [True] * (len(session) - 1)
    assert plan.chains == plan.sessions


def test_what_does_not_fit_the_model_is_cut_and_said(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", (0, 1024, (1, 2)), (5, 600, (1, 3)), (9, 30, (4,)))
    plan = build_plan(spec, 0, max_context_tokens=620)
    assert [len(prompt) for prompt in ids(plan)] == [600, 600, 30]
    assert common(*ids(plan)[:2]) == 512
    assert plan.notes == (
        "1 of 3 prompts are cut to the model's 620 tokens of context (the longest has 1,024; 74.4 % of the prompt tokens are left)",
    )
    tight = build_plan(mooncake(tmp_path / "log", (0, 30, (4,)), output=100), 0, max_context_tokens=16)
    assert [(len(item.prompt_token_ids or ()), item.max_tokens) for item in tight.requests] == [(8, 8)]
    assert tight.notes[1] == "1 outputs are cut to half of the context"


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=9),
    room=st.integers(2, 200),
)
def test_nothing_is_longer_than_the_context(lengths: list[tuple[int, int]], room: int) -> None:
    frame = pl.DataFrame(
        {
            "arrival_ns": [0] * len(lengths),
            "input_tokens": [a for a, _ in lengths],
            "output_tokens": [b for _, b in lengths],
        }
    )
    empty = planned_frame("poisson:n=1", 0).clear()
    arrivals = Arrivals(
        frame=pl.concat([empty, frame.with_row_index("index").cast({"index": pl.Int64})], how="diagonal")
    )
    for request, (prompt, output) in zip(requests_of(fitted(arrivals, room), 0), lengths, strict=True):
        tokens = len(request.prompt_token_ids or ())
        assert tokens >= 1 and request.max_tokens >= 1 and tokens + request.max_tokens <= room
        if prompt + max(1, output) <= room and output <= room // 2:
            assert (tokens, request.max_tokens) == (prompt, max(1, output))


def test_a_plan_too_large_for_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="have 300,000,000 tokens in all"):
        build_plan("poisson:n=100,prompt=3000000", 0, max_context_tokens=ROOM)
    with pytest.raises(UsageProblem, match="1,000,001 requests or more, above 1,000,000"):
        planned_arrivals("poisson:duration=9000000,rate=1000", 0)


# Transforms


def test_times_and_rates_and_lengths_scale(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", (0, 512, (1,)), (1000, 512, (1,)), (3000, 1000, (1, 2)))
    assert planned_frame(spec, 0, rate_scale=4)["arrival_ns"].to_list() == [0, S // 4, 3 * S // 4]
    assert planned_frame(spec, 0, time_scale=2, rate_scale=4)["arrival_ns"].to_list() == [0, S // 2, 3 * S // 2]
    half = planned_arrivals(spec, 0, length_scale=0.5, first=2)
    assert half.frame.select("input_tokens", "output_tokens").rows() == [(256, 10), (256, 10)]
    assert half.whole_block_tokens == 256
    assert planned_arrivals(spec, 0, length_scale=0.3).whole_block_tokens is None


def test_waits_scale_with_time_and_not_with_the_rate() -> None:
    path = shared("tracelab/replay_examples_multi_session_example.csv")
    as_logged = planned_frame(f"replay:path={path}", 0)
    scaled = planned_frame(f"replay:path={path}", 0, time_scale=3, rate_scale=2)
    assert scaled["tool_wait_ns"].to_list() == [3 * wait for wait in as_logged["tool_wait_ns"]]
    assert scaled["arrival_ns"].to_list() == [None if ns is None else ns * 3 // 2 for ns in as_logged["arrival_ns"]]


@pytest.mark.parametrize(
    "name",
    ["AzureLLMInferenceTrace_code_2023.csv", "coding_agent_sessions.csv", "mooncake_fast25_synthetic_trace.jsonl"],
)
def test_the_members_of_a_pool_share_everything_out(name: str) -> None:
    spec = f"replay:path={shared(name)}"
    whole = planned_frame(spec, 0)
    members = [planned_frame(spec, 0, pool=5, member=member) for member in range(5)]
    assert sorted(line for member in members for line in member["line"].to_list()) == sorted(whole["line"].to_list())
    assert min(member.height for member in members) > 0.5 * whole.height / 5
    sessions = [set(member["session_id"].drop_nulls().to_list()) for member in members]
    assert sum(map(len, sessions)) == len(set().union(*sessions))


def test_a_pool_keeps_what_prompts_share() -> None:
    spec = f"replay:path={shared('mooncake_fast25_synthetic_trace.jsonl')}"
    alone = describe(planned_arrivals(spec, 0), spec="", seed=0).prefix.infinite_tokens
    shares = [
        describe(planned_arrivals(spec, 0, pool=4, member=i), spec="", seed=0).prefix.infinite_tokens for i in range(4)
    ]
    assert alone is not None and sum(share or 0 for share in shares) == alone


def test_a_pool_keeps_bursts_where_dealing_in_turn_would_smooth_them() -> None:
    spec = f"replay:path={shared('AzureLLMInferenceTrace_code_2023.csv')}"
    pool = 8

    def dispersion(frame: pl.DataFrame) -> float:
        rates = describe(Arrivals(frame=frame), spec="", seed=0).rates
        assert rates is not None
        return rates.dispersion

    whole = planned_frame(spec, 0)
    kept = [dispersion(planned_frame(spec, 0, pool=pool, member=member)) for member in range(pool)]
    dealt = [dispersion(whole.filter(pl.col("index") % pool == member)) for member in range(pool)]
    expected = 1 + (dispersion(whole) - 1) / pool  # an independent share of a bursty process
    assert sum(kept) / pool == pytest.approx(expected, rel=0.1)
    assert sum(dealt) / pool < 0.75 * expected


def test_a_closed_loop_of_a_log_with_sessions(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n0,a,1,9,3\n1,b,1,9,3\n5,a,,20,3\n7,a,1,30,3\n"
    )
    open_loop = build_plan(f"replay:path={path}", 0, max_context_tokens=ROOM)
    assert [item.after_previous for item in open_loop.requests] == [False] * 4 and len(open_loop.chains) == 4
    closed = planned_arrivals(f"replay:path={path}", 0, loop="closed")
    assert closed.frame.select("session_id", "arrival_ns", "think_ns").rows() == [
        ("session-a", 0, 4 * S), ("session-b", S, None), ("session-a", None, 2 * S), ("session-a", None, None),
    ]  # fmt: skip
    assert closed.notes[-1] == "the waits behind 1 turns are the time from turn to turn, service included"
    assert len(build_plan(f"replay:path={path},loop=closed", 0, max_context_tokens=ROOM).chains) == 2


def test_drawn_times_for_a_log_that_has_none_or_others(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", (0, 5, (1,)), (1, 6, (2,)), (2, 7, (3,)))
    steady = planned_arrivals(spec, 0, rate=4, cv=0, rate_scale=2)
    assert steady.frame.select("arrival_ns", "input_tokens").rows() == [(0, 5), (S // 8, 6), (S // 4, 7)]
    assert steady.notes == ("arrivals are drawn, 4 requests per second, not the log's",)
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 2
    (tmp_path / "talk").write_text(json.dumps([{"conversations": talk}] * 2))
    closed = planned_frame(f"replay:path={tmp_path / 'talk'},rate=2,cv=0", 0)
    assert closed.select("session_id", "turn", "arrival_ns").rows() == [
        ("chat-0", 0, 0), ("chat-0", 1, None), ("chat-1", 0, S // 2), ("chat-1", 1, None),
    ]  # fmt: skip


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    talk = tmp_path / "talk"
    talk.write_text(
        json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 2}])
    )
    for spec, message in (
        (f"replay:path={talk},loop=open", "an open loop is not possible"),
        ("replay", "workload replay has no log"),
        ("poisson:pool=2,member=2", "member=2 is none of a pool of 2"),
        ("poisson:n=1,pool=1000,member=7", "workload poisson has no request"),
        ("poisson:rate=0", "out of bounds"),
        ("burst:size=100,gap=1s,every=10s", "a burst is longer than the time to the next one"),
        ("gamma:prompt=0", "'0' is not a length from 1 to 10,000,000"),
        ("gamma:prompt=9..3", "is not a length from"),
    ):
        with pytest.raises(UsageProblem) as caught:
            planned_arrivals(spec, 0)
        assert message in caught.value.message
    spec = mooncake(tmp_path / "log", (0, 5, (1,)))
    (tmp_path / "log").write_text((tmp_path / "log").read_text() + "torn\n")
    with pytest.raises(UnreadableInput, match=r"log:2: not JSON"):
        planned_arrivals(spec, 0, bad_rows="stop")
    assert planned_arrivals(f"replay:path={tmp_path / 'log'}", 0).notes == (
        "1 rows are no requests and were skipped: line 2: not JSON, or cut off",
    )


def test_a_path_with_a_comma_and_a_per_cent_sign(tmp_path: Path) -> None:
    odd = tmp_path / "a,b%2C=c"
    mooncake(odd, (0, 5, (1,)))
    plan = build_plan(
        "replay:" + f"path={str(odd).replace('%', '%25').replace(',', '%2C')}", 0, max_context_tokens=ROOM
    )
    assert build_plan(plan.spec, 0, max_context_tokens=ROOM) == plan and plan.n_requests == 1
    assert planned_frame("replay", 0, path=odd).height == 1


# Arrivals without a log


def gaps(spec: str, seed: int = 3) -> list[float]:
    times = planned_frame(spec, seed)["arrival_ns"].to_list()
    assert times[0] == 0
    return [(later - earlier) / S for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize(
    ("spec", "cv"),
    [
        ("poisson:n=6000,rate=20", 1.0),
        ("gamma:n=6000,rate=20,cv=0.5", 0.5),
        ("gamma:n=6000,rate=20,burstiness=0.25", 2.0),
    ],
)
def test_gaps_have_the_mean_and_the_variation_asked_for(spec: str, cv: float) -> None:
    found = gaps(spec)
    mean = sum(found) / len(found)
    deviation = (sum((gap - mean) ** 2 for gap in found) / len(found)) ** 0.5
    assert mean == pytest.approx(1 / 20, rel=4 * cv / 6000**0.5)  # four standard errors
    assert deviation / mean == pytest.approx(cv, rel=0.1)


def test_bursts_and_durations() -> None:
    frame = planned_frame("burst:size=3,every=2s,gap=10ms,duration=5s", 0)
    assert frame["arrival_ns"].to_list() == [n * 2 * S + place * S // 100 for n in range(3) for place in range(3)]
    assert planned_frame("poisson:rate=50,duration=4", 0)["arrival_ns"].max() < 4 * S  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "mean", "low", "high"),
    [("7", 7, 7, 7), ("10..20", 15, 10, 20), ("exp:100", 100, 1, 10_000), ("lognormal:100:0.8", 100, 1, 10_000)],
)
def test_lengths_have_the_mean_asked_for(text: str, mean: float, low: int, high: int) -> None:
    lengths, random = parse_lengths(text), stream(1, text)
    drawn = [lengths.draw(random) for _ in range(5000)]
    assert sum(drawn) / 5000 == pytest.approx(mean, rel=0.06) and low <= min(drawn) and max(drawn) <= high


SPECS = ("poisson:rate=5,prompt=exp:30", "gamma:cv=3,output=1..9", "burst:n=20,prompt=lognormal:50:1")


@pytest.mark.parametrize("spec", SPECS)
def test_the_canonical_spec_and_the_seed_make_the_plan_again(spec: str) -> None:
    plan = build_plan(spec, 7, max_context_tokens=ROOM)
    assert build_plan(plan.spec, 7, max_context_tokens=ROOM) == plan
    assert build_plan(spec, 8, max_context_tokens=ROOM).requests != plan.requests


def test_plans_do_not_depend_on_the_process(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", (0, 512, (1,)), (1000, 1000, (1, 2)))
    program = (
        "import sys; from profiler.workloads.plan import build_plan\n"
        "for spec in sys.argv[1:]: print(build_plan(spec, 3, max_context_tokens=100000))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *SPECS, f"{spec},pool=2,length_scale=0.2"], capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, cwd=Path(__file__).resolve().parents[1],
        ).stdout for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


@pytest.mark.parametrize("spec", ["agent:sessions=2,turns=3", "chat:turns=2", "batch:n=3,rate=2", *SPECS])
def test_every_workload_has_a_frame(spec: str) -> None:
    arrivals = Composition().arrivals(spec, 4)
    assert dict(arrivals.frame.schema) == PLANNED_COLUMNS
    plan = build_plan(spec, 4, max_context_tokens=ROOM)
    assert arrivals.frame["index"].to_list() == list(range(plan.n_requests))
    assert arrivals.frame["output_tokens"].sum() == sum(request.max_tokens for request in plan.requests)
    described = describe(arrivals, spec=spec, seed=4)
    assert json.loads(json.dumps(described.to_dict()))["requests"] == plan.n_requests


def test_an_agents_turn_shares_all_that_stood_before_it() -> None:
    frame = planned_frame("agent:sessions=1,turns=3,system=10,tools=0,task=5,output=7,observation=11", 0)
    assert frame.select("input_tokens", "prefix_tokens").rows() == [(15, 0), (33, 22), (51, 40)]
