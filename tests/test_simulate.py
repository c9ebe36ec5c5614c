"""Idle without a device: the machine against a slow oracle, closed formulas, what must add up, and bad input."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_oracle import NS, Asked, Oracle

from analyzers.commands.options import json_option
from analyzers.commands.simulate import run_simulation, simulate_options
from analyzers.costs.attention import PhaseLoad, load_of_requests
from analyzers.costs.configured import OTHERS, WITH_WEIGHTS
from analyzers.costs.model import step_roof_ns
from analyzers.costs.parallel import Parallel
from analyzers.costs.roof import Peaks
from analyzers.presets import preset_names
from analyzers.report.simulate_text import simulate_lines
from analyzers.scenario import asked, resolve
from analyzers.simulate import simulate
from analyzers.simulation.result import Simulation
from analyzers.simulation.setting import Server, batch_defaults, server_of
from analyzers.simulation.steptime import step_time
from traces.errors import NothingToAnalyze, StepscopeError, UsageProblem
from traces.requestlogs.base import PLANNED_COLUMNS, LogOptions
from traces.requestlogs.registry import read_request_log

WORKLOADS = Path(__file__).resolve().parents[2] / "shared" / "data" / "workloads"
MS = 1_000_000
PAGE = 16


def server(**words: Any) -> Server:
    return server_of({"model": "llama-13b", "gpu": "L40S", **words})


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Planned requests; what a row lacks is NULL."""
    whole = [{name: row.get(name) for name in PLANNED_COLUMNS} | {"index": i} for i, row in enumerate(rows)]
    return pl.DataFrame(whole, schema=PLANNED_COLUMNS)


def every(gap_ns: int, n: int, *, prompt: int = 100, output: int = 1, at: int = 0) -> pl.DataFrame:
    return frame([{"arrival_ns": at + i * gap_ns, "input_tokens": prompt, "output_tokens": output} for i in range(n)])


def formula_ns(of: Server, steps: list[tuple[list[tuple[int, int]], list[int], int]]) -> int:
    """Σ host + roof / efficiency by the cost model itself; steps of (q, k) prompts, k decodes, sampled rows."""
    scenario, _ = asked({"model": of.model, "gpu": of.device})
    found = resolve(scenario, Parallel())
    windows = tuple(of.step_time.windows.tolist())
    total = 0
    for prefills, decodes, sampled in steps:
        roof = 0.0
        for category in WITH_WEIGHTS + OTHERS:
            rate = found.rates.weights if category in WITH_WEIGHTS else found.rates.other
            peaks = Peaks(flops_per_s=rate, bytes_per_s=found.rates.bandwidth)
            roof += float(step_roof_ns(found.shape, category, peaks, *loads(prefills, decodes, sampled, windows)))
        total += of.setting.host_ns + round(roof / of.setting.efficiency)
    return total


def loads(
    prefills: list[tuple[int, int]], decodes: list[int], sampled: int, windows: tuple[int, ...] = ()
) -> tuple[PhaseLoad, PhaseLoad]:
    q, k = np.array([q for q, _ in prefills], dtype=np.int64), np.array([k for _, k in prefills], dtype=np.int64)
    d = np.array(decodes, dtype=np.int64)
    return (
        load_of_requests(q, k - q, prompts=True, sampled=sampled - len(decodes), windows=windows),
        load_of_requests(np.ones(len(d), dtype=np.int64), d - 1, windows=windows),
    )


# Step times


@pytest.mark.parametrize("model", preset_names())
def test_a_step_takes_what_the_cost_model_says(model: str) -> None:
    scenario, _ = asked({"model": model, "gpu": "H100-SXM"})
    found = resolve(scenario, Parallel())
    steps = step_time(found.shape, found.rates, Parallel())
    windows = tuple(steps.windows.tolist())
    for prefills, decodes, sampled in (
        ([(700, 800), (300, 300)], [], 1), ([], [500] * 7, 7), ([(2048, 9000)], [3, 900, 4000], 3), ([(1, 11)], [10], 2),
    ):  # fmt: skip
        prefill, decode = loads(prefills, decodes, sampled, windows)
        roof = 0.0
        for category in WITH_WEIGHTS + OTHERS:
            rate = found.rates.weights if category in WITH_WEIGHTS else found.rates.other
            peaks = Peaks(flops_per_s=rate, bytes_per_s=found.rates.bandwidth)
            roof += float(step_roof_ns(found.shape, category, peaks, prefill, decode))
        assert steps.roof_ns(steps.features(prefill, decode)) == pytest.approx(roof, rel=1e-9)


def test_two_ranks_divide_the_work_and_send() -> None:
    scenario, _ = asked({"model": "llama-3.1-8b", "gpu": "H100-SXM"})
    found = resolve(scenario, Parallel())
    one, two = (step_time(found.shape, found.rates, Parallel(tensor=n)) for n in (1, 2))
    features = one.features(*loads([(1000, 1000)], [], 1))
    sent = 2 * 32 * 4096 * 2 / found.rates.link * NS  # two all-reduces a layer, 2·(n−1)/n of the hidden state each
    assert (one.comm_ns, two.comm_ns) == (0, pytest.approx(sent))
    assert 0.5 < two.roof_ns(features) / one.roof_ns(features) < 0.8


# Closed formulas


@pytest.mark.parametrize("model", ["llama-13b", "gpt-oss-20b"])  # the second with experts and windows of 128
def test_a_single_request_takes_the_closed_formula(model: str) -> None:
    of = server(model=model, max_num_batched_tokens=512)
    found = simulate(of, every(NS, 1, prompt=1100, output=4))
    prompt = [([(512, 512)], [], 0), ([(512, 1024)], [], 0), ([(76, 1100)], [], 1)]
    decode = [([], [k], 1) for k in (1101, 1102, 1103)]
    row = found.requests.row(0, named=True)
    assert row["ttft_ns"] == formula_ns(of, prompt)
    assert row["e2e_ns"] == formula_ns(of, prompt + decode)
    assert found.time.busy_ns == row["e2e_ns"] - 6 * of.setting.host_ns
    assert found.time.host_ns == 6 * of.setting.host_ns
    assert found.counts.steps == 6


def test_a_prompt_rides_along_with_a_decode() -> None:
    of = server(host_overhead_us=0)
    first = formula_ns(of, [([(300, 300)], [], 1)])
    found = simulate(of, frame([
        {"arrival_ns": 0, "input_tokens": 300, "output_tokens": 3},
        {"arrival_ns": first - 1, "input_tokens": 200, "output_tokens": 1},
    ]))  # fmt: skip
    mixed = formula_ns(of, [([(200, 200)], [301], 2)])
    assert found.requests["first_ns"].to_list() == [first, first + mixed]
    assert found.requests["finish_ns"].to_list() == [first + mixed + formula_ns(of, [([], [302], 1)]), first + mixed]
    assert found.requests["scheduled_ns"].to_list() == [0, first]


def test_spaced_arrivals_have_an_exact_idle_share() -> None:
    """D/D/1: a request every ten seconds, each busy for 50 ms to 1 s of its second: nine of ten seconds are idle."""
    of = server(minutes=10)
    found = simulate(of, every(10 * NS, 60, prompt=1000, output=3))
    service = formula_ns(of, [([(1000, 1000)], [], 1), ([], [1001], 1), ([], [1002], 1)])
    assert 50 * MS < service < NS
    assert [item.time_share for item in found.execution_idle] == [0.9, 0.9]
    assert [(item.intervals, item.p50_s) for item in found.execution_idle] == [(60, 9.0), (60, 9.0)]
    assert found.time.busy_ns + found.time.host_ns == 60 * service
    assert found.time.no_work_ns == 600 * NS - 60 * service


def test_short_gaps_count_only_without_a_shortest_duration() -> None:
    found = simulate(server(minutes=4), every(4 * NS, 60, prompt=1000, output=3))
    assert [item.time_share for item in found.execution_idle] == [0.75, 0.0]
    assert found.execution_idle[1].p50_s is None
    assert found.execution_idle[1].energy_share == 0.0


def test_a_second_is_active_from_five_percent_on() -> None:
    """Work that lies across a second's end is divided by it."""
    of = server(minutes=0.1, host_overhead_us=0)
    service = formula_ns(of, [([(1000, 1000)], [], 1)])
    assert 110 * MS < service < 900 * MS
    for before_end, active in (
        (service, 1),
        (49 * MS, 1),
        (50 * MS, 2),
        (service - 50 * MS, 2),
        (service - 49 * MS, 1),
    ):
        found = simulate(of, every(NS, 1, prompt=1000, at=3 * NS - before_end))
        assert found.execution_idle[0].idle_seconds == 6 - active, before_end


def test_energy_is_idle_power_and_the_busy_share() -> None:
    of = server(minutes=10, idle_watts=100, active_watts=300)
    found = simulate(of, every(10 * NS, 60, prompt=1000, output=3))
    total = 100 * 600 + 200 * found.time.busy_ns / NS
    assert found.mean_power_w == pytest.approx(total / 600)
    assert found.execution_idle[0].energy_share == pytest.approx(100 * 540 / total)
    unknown = simulate(replace(of, setting=replace(of.setting, idle_w=None)), every(10 * NS, 60))
    assert (unknown.mean_power_w, unknown.execution_idle[0].energy_share) == (None, None)
    assert any("withheld" in line for line in simulate_lines(unknown))


# The cache


def test_a_full_cache_takes_pages_from_the_request_admitted_last() -> None:
    """Two prompts of 64 tokens fill 8 of 10 pages; both decode into two further ones, and at 81 tokens none is left."""
    of = server(kv_tokens=160, host_overhead_us=0)
    requests = [{"arrival_ns": 0, "input_tokens": 64, "output_tokens": 40} for _ in range(2)]
    found = simulate(of, frame(requests))
    assert found.requests["preemptions"].to_list() == [0, 1]
    assert found.counts.preemptions == 1
    # 64 prompt tokens and 16 answers are in the cache when it is full; they and the 17th answer come again as one prompt
    assert found.counts.recomputed_tokens == 80
    assert found.peak_kv_share == 1.0
    assert found.counts.output_tokens == 80
    assert found.requests["finish_ns"][0] < found.requests["finish_ns"][1]


def test_a_prompt_waits_until_there_are_pages_for_all_of_it() -> None:
    of = server(kv_tokens=320, max_num_batched_tokens=16)
    found = simulate(of, frame([{"arrival_ns": 0, "input_tokens": 160, "output_tokens": 2},
                                {"arrival_ns": 1, "input_tokens": 170, "output_tokens": 1}]))  # fmt: skip
    assert found.requests["scheduled_ns"][1] == found.requests["finish_ns"][0]
    assert found.counts.preemptions == 0


def test_common_blocks_are_computed_once() -> None:
    rows = [
        {"arrival_ns": i * 10 * NS, "input_tokens": 1100, "output_tokens": 1, "hash_ids": [1, 2, 3 + i]}
        for i in range(2)
    ]
    found = simulate(server(), frame(rows), block_tokens=512)
    assert found.requests["cached_tokens"].to_list() == [0, 1024]
    assert found.counts.prefilled_tokens == 1100 + 76
    without = simulate(server(prefix_caching=False), frame(rows), block_tokens=512)
    assert without.counts.cached_tokens == 0
    # the same prompt again: its last token has to be computed
    again = simulate(server(), frame([rows[0] | {"input_tokens": 1024, "hash_ids": [1, 2]}] * 2), block_tokens=512)
    assert again.requests["cached_tokens"].to_list() == [0, 512] or again.requests["cached_tokens"].to_list() == [0, 0]
    later = simulate(
        server(), frame([rows[i] | {"input_tokens": 1024, "hash_ids": [1, 2]} for i in range(2)]), block_tokens=512
    )
    assert later.requests["cached_tokens"].to_list() == [0, 512]


def test_a_turn_finds_what_the_turn_before_computed_and_said() -> None:
    """1,000 tokens of prompt and 100 of answer are 8 full blocks of 128; the second prompt has all of them."""
    turns = [
        {"session_id": "s", "turn": 0, "arrival_ns": 0, "input_tokens": 1000, "output_tokens": 101},
        {"session_id": "s", "turn": 1, "input_tokens": 1300, "output_tokens": 1, "prefix_tokens": 1100},
        {"session_id": "s", "turn": 2, "input_tokens": 1300, "output_tokens": 1, "prefix_tokens": 300},
    ]  # fmt: skip
    found = simulate(server(), frame(turns))
    assert found.requests["cached_tokens"].to_list() == [0, 1024, 256]


def test_old_blocks_go_when_pages_are_needed() -> None:
    rows = [
        {"arrival_ns": 0, "input_tokens": 64, "output_tokens": 1, "hash_ids": [1, 2]},
        {"arrival_ns": 10 * NS, "input_tokens": 96, "output_tokens": 1, "hash_ids": [7, 8, 9]},
        {"arrival_ns": 20 * NS, "input_tokens": 64, "output_tokens": 1, "hash_ids": [1, 2]},
    ]  # fmt: skip
    # pages for the first request and two thirds of the second: one block has to go, the deeper of the two
    found = simulate(server(kv_tokens=128), frame(rows), block_tokens=32)
    assert found.requests["cached_tokens"].to_list() == [0, 0, 32]
    roomy = simulate(server(kv_tokens=160), frame([*rows[:2], rows[2] | {"input_tokens": 65}]), block_tokens=32)
    assert roomy.requests["cached_tokens"].to_list() == [0, 0, 64]


# Sessions


def test_a_closed_loop_waits_for_the_turn_before() -> None:
    turns = [
        {
            "session_id": "s",
            "turn": 0,
            "arrival_ns": 0,
            "input_tokens": 100,
            "output_tokens": 2,
            "tool_wait_ns": 3 * NS,
        },
        {"session_id": "s", "turn": 1, "input_tokens": 100, "output_tokens": 2, "tool_wait_ns": NS, "think_ns": 2 * NS},
        {"session_id": "s", "turn": 2, "input_tokens": 100, "output_tokens": 2, "tool_wait_ns": 9 * NS},
    ]
    of = server(minutes=0.5)
    found = simulate(of, frame(turns))
    one = formula_ns(of, [([(100, 100)], [], 1), ([], [101], 1)])
    assert found.requests["arrival_ns"].to_list() == [0, one + 3 * NS, 2 * one + 6 * NS]
    assert found.time.tool_wait_ns == 4 * NS  # thinking is no tool, and after the last turn nothing is open
    assert found.time.no_work_ns == 30 * NS - 3 * one - 4 * NS
    assert not any("follow at once" in note for note in found.notes)


def test_a_tool_wait_is_one_only_while_every_open_session_waits_for_a_tool() -> None:
    sessions = [
        {
            "session_id": "a",
            "turn": 0,
            "arrival_ns": 0,
            "input_tokens": 10,
            "output_tokens": 1,
            "tool_wait_ns": 20 * NS,
        },
        {"session_id": "a", "turn": 1, "input_tokens": 10, "output_tokens": 1},
        {
            "session_id": "b",
            "turn": 0,
            "arrival_ns": 5 * NS,
            "input_tokens": 10,
            "output_tokens": 1,
            "think_ns": 5 * NS,
        },
        {"session_id": "b", "turn": 1, "input_tokens": 10, "output_tokens": 1},
    ]
    of = server(minutes=1)
    found = simulate(of, frame(sessions))
    one = formula_ns(of, [([(10, 10)], [], 1)])
    # a waits in (one, 20 s + one); b is open from 5 s to 10 s + 2·one
    assert found.time.tool_wait_ns == (5 * NS - one) + (20 * NS + one - (10 * NS + 2 * one))


def test_turns_beyond_the_window_do_not_start() -> None:
    turns = [
        {"session_id": "s", "turn": 0, "arrival_ns": 0, "input_tokens": 10, "output_tokens": 1, "think_ns": 60 * NS},
        {"session_id": "s", "turn": 1, "input_tokens": 10, "output_tokens": 1},
        {"session_id": "late", "turn": 0, "arrival_ns": 40 * NS, "input_tokens": 10, "output_tokens": 1},
        {"session_id": "late", "turn": 1, "input_tokens": 10, "output_tokens": 1},
    ]
    found = simulate(server(minutes=0.5), frame(turns))
    assert (found.counts.finished, found.counts.not_started, found.counts.left_out) == (1, 1, 2)
    assert any("3 requests would start after the window" in note for note in found.notes)


# What must add up


def check_sums(found: Simulation) -> None:
    for time in (found.time, *(item.time for item in found.servers)):
        assert time.busy_ns + time.host_ns + time.tool_wait_ns + time.no_work_ns == time.window_ns
        assert min(time.busy_ns, time.host_ns, time.tool_wait_ns, time.no_work_ns) >= 0
    counts = found.counts
    assert counts.requests == counts.finished + counts.refused + counts.not_started
    assert counts.prompt_tokens == counts.prefilled_tokens + counts.cached_tokens
    assert counts.decoded_tokens == counts.output_tokens - counts.finished
    assert found.time.window_ns == found.pool * found.window_ns
    done = found.requests.filter(pl.col("finish_ns").is_not_null())
    order = done.select(
        (pl.col("arrival_ns") <= pl.col("scheduled_ns")).all()
        & (pl.col("scheduled_ns") < pl.col("first_ns")).all() & (pl.col("first_ns") <= pl.col("finish_ns")).all()
    )  # fmt: skip
    assert order.item() in (True, None)
    json.dumps(found.to_dict(), allow_nan=False)
    assert all(len(line) <= 100 for line in simulate_lines(found) if not line.startswith("note: "))


@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_code_2023.csv", "mooncake_fast25_synthetic_trace.jsonl"])
def test_a_real_log_adds_up_and_repeats(name: str) -> None:
    path = WORKLOADS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    log = read_request_log(path, LogOptions(first=1500))
    of = server_of({"model": "llama-3.1-8b", "gpu": "A100-80GB-SXM4", "pool": 5, "seed": 3})
    found = simulate(of, log.frame, block_tokens=log.block_tokens)
    check_sums(found)
    assert found.counts.finished == 1500
    assert found.counts.output_tokens == log.frame.select(pl.col("output_tokens").clip(1).sum()).item()
    assert sum(item.requests for item in found.servers) == 1500
    again = simulate(of, log.frame, block_tokens=log.block_tokens)
    assert again == found and again.requests.equals(found.requests)
    other = simulate(replace(of, setting=replace(of.setting, seed=4)), log.frame, block_tokens=log.block_tokens)
    assert other.servers != found.servers


def test_one_server_with_room_for_everything_reuses_what_a_log_repeats() -> None:
    """65.1 % with an infinite cache; a request in flight has computed less than its whole prompt, so a little less."""
    path = WORKLOADS / "mooncake_fast25_synthetic_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    log = read_request_log(path, LogOptions())
    of = server_of({"model": "llama-3.1-8b", "gpu": "H200", "kv_tokens": 1 << 32, "minutes": 44_640})
    stretched = log.frame.with_columns(pl.col("arrival_ns") * 20)
    found = simulate(of, stretched, block_tokens=log.block_tokens)
    assert 0.64 < found.counts.cached_tokens / found.counts.prompt_tokens <= 0.651


# The oracle


@st.composite
def loads_of_requests(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, int]]:
    limits = {
        "budget": draw(st.integers(1, 80)), "seqs": draw(st.integers(1, 5)), "pages": draw(st.integers(6, 20)),
        "host_ns": draw(st.sampled_from([0, 500_000])), "block": draw(st.sampled_from([0, 16, 32])),
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for session in range(draw(st.integers(1, 6))):
        turns = draw(st.integers(1, 3))
        closed = draw(st.booleans())
        for turn in range(turns):
            prompt = draw(st.integers(1, 150))
            common = draw(st.integers(0, 9))
            family = draw(st.integers(0, 1))
            row = {"session_id": f"s{session}", "turn": turn, "input_tokens": prompt, "output_tokens": draw(st.integers(0, 40)),
                   "tool_wait_ns": draw(st.sampled_from([None, 0, NS // 3, 2 * NS])),
                   "think_ns": draw(st.sampled_from([None, NS]))}  # fmt: skip
            if turn == 0 or not closed:
                row["arrival_ns"] = draw(st.integers(0, 4)) * NS // 2
            if limits["block"]:
                n = -(-prompt // limits["block"])
                row["hash_ids"] = [family * 100 + j if j < common else 1000 * len(rows) + 10_000 + j for j in range(n)]
            rows.append(row)
    return rows, limits


@given(loads_of_requests())
@settings(deadline=None, max_examples=60)
def test_the_machine_does_what_a_slow_simulation_does(drawn: tuple[list[dict[str, Any]], dict[str, int]]) -> None:
    rows, limits = drawn
    of = server(
        kv_tokens=limits["pages"] * PAGE, max_num_seqs=limits["seqs"], max_num_batched_tokens=limits["budget"],
        host_overhead_us=limits["host_ns"] / 1000, efficiency=0.5,
    )  # fmt: skip

    def time_ns(prefills: list[tuple[int, int]], decodes: list[int], sampled: int) -> int:
        return round(of.step_time.roof_ns(of.step_time.features(*loads(prefills, decodes, sampled))) / 0.5)

    requests = [
        Asked(
            prompt=row["input_tokens"], output=max(row["output_tokens"], 1), arrival=row.get("arrival_ns"),
            wait=(row["tool_wait_ns"] or 0) + (row["think_ns"] or 0),
            ids=row.get("hash_ids", [])[: row["input_tokens"] // limits["block"] if limits["block"] else 0],
            refused=-(-(row["input_tokens"] + max(row["output_tokens"], 1) - 1) // PAGE) > limits["pages"],
        )
        for row in rows
    ]  # fmt: skip
    for i in range(len(rows) - 1):
        if rows[i + 1]["turn"] and rows[i + 1].get("arrival_ns") is None:
            requests[i].next_turn = requests[i + 1]
    block = limits["block"] if any(row.get("hash_ids") for row in rows) else 0
    oracle = Oracle(
        time_ns=time_ns, host_ns=limits["host_ns"], budget=limits["budget"], seqs=limits["seqs"],
        pages=limits["pages"], page=PAGE, block=block,
    )  # fmt: skip
    oracle.run(requests)
    if not oracle.steps:
        with pytest.raises(NothingToAnalyze):
            simulate(of, frame(rows))
        return
    found = simulate(of, frame(rows), block_tokens=limits["block"] or None)
    check_sums(found)
    got = found.requests.select(
        "arrival_ns", "scheduled_ns", "first_ns", "finish_ns", "cached_tokens", "preemptions"
    ).rows()
    assert got == [(r.arrival, r.scheduled, r.first, r.finish, r.cached, r.preempted) for r in requests]
    assert found.counts.recomputed_tokens == oracle.recomputed
    assert found.counts.steps == len(oracle.steps)
    check_times(found, oracle, rows, requests)


def check_times(found: Simulation, oracle: Oracle, rows: list[dict[str, Any]], requests: list[Asked]) -> None:
    """Busy time in all and per second, batches, pages, and the causes of idle time."""
    busy = [(step.start, step.end) for step in oracle.steps]
    assert found.time.busy_ns == sum(end - start for start, end in busy)
    assert found.time.host_ns == sum(step.start - step.began for step in oracle.steps)
    end = max((step.end for step in oracle.steps), default=0)
    assert found.window_ns >= end
    seconds = range(found.window_ns // NS)
    filled = [sum(max(0, min(b, (s + 1) * NS) - max(a, s * NS)) for a, b in busy) for s in seconds]
    assert found.execution_idle[0].idle_seconds == sum(ns < NS // 20 for ns in filled)
    text = "".join("i" if ns < NS // 20 else "a" for ns in filled)
    assert found.execution_idle[1].idle_seconds == sum(len(run) for run in text.split("a") if len(run) >= 5)
    assert found.batch.most == max((step.running for step in oracle.steps), default=0)
    assert found.peak_kv_share * oracle.pages == pytest.approx(max((step.pages for step in oracle.steps), default=0))
    assert found.time.tool_wait_ns == tool_wait(found.window_ns, oracle, rows, requests)


def tool_wait(window: int, oracle: Oracle, rows: list[dict[str, Any]], requests: list[Asked]) -> int:
    """By looking at every stretch between two events. Sessions whose turns overlap are left to the machine."""
    sessions: dict[str, list[tuple[dict[str, Any], Asked]]] = {}
    for row, request in zip(rows, requests, strict=True):
        sessions.setdefault(row["session_id"], []).append((row, request))
    opened, tools = [], []
    for turns in sessions.values():
        last = turns[-1][1]
        order = sorted(turns, key=lambda turn: (turn[1].arrival, turns.index(turn)))
        done = [request.arrival if request.finish is None else request.finish for _, request in order]
        closed = any(request is last for _, request in order)
        opened.append((order[0][1].arrival, max(done) if closed else window))
        for i, (row, request) in enumerate(order):
            at_end = i == len(order) - 1
            if at_end and request is last:
                continue
            until = window if at_end else order[i + 1][1].arrival
            tools.append((done[i], max(done[i], min(done[i] + (row["tool_wait_ns"] or 0), until))))
    work = [(r.arrival, r.finish) for r in requests if r.finish is not None]
    times = sorted({0, window, *(t for span in (*opened, *tools, *work) for t in span if t <= window)})
    total = 0
    for start, end in itertools.pairwise(times):

        def covers(spans: list[tuple[int, int]], start: int = start) -> int:
            return sum(a <= start < b for a, b in spans)

        if not covers(work) and covers(tools) and covers(tools) == covers(opened):
            total += end - start
    return total


# What a user gets wrong


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ({"gpu": "L41S"}, "unknown GPU L41S", "L40S"),
        ({"model": "llama-99b"}, "unknown model llama-99b", "presets"),
        ({"model": "llama-3.1-70b"}, "does not fit on L40S: 141.1 GB of weights", "--tp"),
        ({"gpu": None}, "needs a model and a device", "--gpu"),
        ({"model": None}, "needs a model and a device", "--model"),
        ({"route": "nearest"}, "unknown route nearest", "random"),
        ({"gpu": "V100-PCIe", "model": "llama-2-7b", "dtype": "bfloat16"}, "no matrix units for bf16", "--dtype"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_said(words: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageProblem) as raised:
        server(**words)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no request"),
        ([{"arrival_ns": 0, "input_tokens": 5}], "1 of 1 requests have no output tokens"),
        ([{"arrival_ns": 0, "output_tokens": 5}], "1 of 1 requests have no input tokens"),
        ([{"arrival_ns": 0, "input_tokens": 0, "output_tokens": 5}], "no input tokens"),
        ([{"input_tokens": 5, "output_tokens": 5}], "no time of arrival"),
        ([{"session_id": "s", "turn": 0, "input_tokens": 5, "output_tokens": 5}], "no time of arrival"),
        ([{"arrival_ns": 1 << 62, "input_tokens": 5, "output_tokens": 5}], "at most 31 are simulated"),
        ([{"arrival_ns": -1, "input_tokens": 5, "output_tokens": 5}], "before the first one"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_simulated_are_said(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(StepscopeError) as raised:
        simulate(server(), frame(rows))
    assert message in raised.value.message
    assert raised.value.hint


def test_nothing_to_simulate_is_exit_5() -> None:
    one = every(NS, 1, prompt=100)
    for of, requests, message in (
        (server(), frame([]), "no request"),
        (server(kv_tokens=64), one, "longer than what a server takes"),
        (server(kv_tokens=1), one, "longer than what a server takes"),
        (server(max_model_len=100), one, "longer than what a server takes"),
        (server(minutes=1), every(NS, 1, at=60 * NS), "within the window"),
    ):
        with pytest.raises(NothingToAnalyze, match=message):
            simulate(of, requests)


def test_hostile_numbers_end_in_a_sentence() -> None:
    huge = {"arrival_ns": 0, "input_tokens": 1 << 40, "output_tokens": 1 << 40, "hash_ids": [5, 5, 5, -1, 1 << 62]}
    short = {"arrival_ns": 5, "input_tokens": 40, "output_tokens": 1, "hash_ids": [5, 5]}
    found = simulate(server(), frame([huge, short]), block_tokens=16)
    check_sums(found)
    assert (found.counts.refused, found.counts.finished) == (1, 1)
    waits = [{"session_id": "s", "turn": 0, "arrival_ns": 0, "input_tokens": 5, "output_tokens": 1, "tool_wait_ns": 1 << 62},
             {"session_id": "s", "turn": 1, "input_tokens": 5, "output_tokens": 1}]  # fmt: skip
    with pytest.raises(UsageProblem, match="31 simulated days"):
        simulate(server(), frame(waits))
    with pytest.raises(UsageProblem, match="longer than ten minutes"):
        simulate(server(peak_flops="1M"), every(NS, 1))


def test_long_prompts_are_refused_or_cut_only_as_asked() -> None:
    rows = [
        {"arrival_ns": i * NS, "input_tokens": n, "output_tokens": 30} for i, n in enumerate((100, 2000, 2030, 2048))
    ]
    served = simulate(server(), frame(rows))
    assert served.counts.finished == 4
    assert any("2 of 4 requests are longer than the 2,048 tokens" in note for note in served.notes)
    limited = simulate(server(max_model_len=2048), frame(rows))
    assert (limited.counts.finished, limited.counts.refused, limited.counts.output_tokens) == (3, 1, 30 + 30 + 18)
    assert any("1 outputs end at max_model_len" in note for note in limited.notes)


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [("L40S", 2048, 256), ("A100-80GB-SXM4", 2048, 256), ("H100-SXM", 8192, 1024), ("B200", 16384, 1024)],
)
def test_batch_limits_are_vllms(gpu: str, tokens: int, seqs: int) -> None:
    device = asked({"model": "tiny", "gpu": gpu})[0].override.device
    assert device is not None
    assert batch_defaults(device) == (tokens, seqs)


def test_13b_in_16_bits_leaves_room_for_24846_tokens_on_an_l40s() -> None:
    of = server()
    assert of.weights_bytes == pytest.approx(26.03e9, rel=1e-3)
    assert of.kv_bytes_per_token == 2 * 40 * 5120 * 2
    assert of.setting.kv_tokens == int((0.9 * 48 * 2**30 - of.weights_bytes) // of.kv_bytes_per_token) == 24846


# Pools


def test_requests_stay_where_their_session_or_prompt_is() -> None:
    rows = [
        {"arrival_ns": i * MS, "input_tokens": 64, "output_tokens": 1, "hash_ids": [0, 10 + i % 100, 1000 + i]}
        for i in range(400)
    ]
    of = server(pool=4)
    servers = simulate(of, frame(rows), block_tokens=16).requests["server"].to_numpy()
    assert all(len(set(servers[i::100])) == 1 for i in range(100))  # by the second block: everybody has the first
    assert set(servers) == {0, 1, 2, 3}
    drawn = simulate(server(pool=4, route="random"), frame(rows), block_tokens=16).requests["server"].to_numpy()
    assert any(len(set(drawn[i::100])) > 1 for i in range(100))
    in_turn = simulate(server(pool=4, route="round-robin"), frame(rows)).requests["server"].to_list()
    assert in_turn == [i % 4 for i in range(400)]


def test_a_pool_with_more_servers_than_requests() -> None:
    found = simulate(server(pool=7), every(NS, 2))
    check_sums(found)
    assert sum(item.requests == 0 for item in found.servers) >= 5
    assert found.time.window_ns == 7 * found.window_ns


# The command


class Planned:
    """What the root command hands over."""

    def __init__(self, requests: pl.DataFrame) -> None:
        self.frame, self.whole_block_tokens, self.notes = requests, None, ("a log's own note",)

    def arrivals(self, spec: str, seed: int = 0) -> Planned:
        assert (spec, seed) == ("replay:path=log", 2)
        return self


@click.command()
@simulate_options
@json_option
@click.pass_obj
def command(obj: Any, /, spec: str, as_json: bool, **words: Any) -> None:
    run_simulation(obj, spec, as_json=as_json, **words)


def ran(*words: str, requests: pl.DataFrame | None = None) -> Any:
    given_words = ["--simulate", "replay:path=log", "--model", "llama-13b", "--gpu", "L40S", "--seed", "2", *words]
    return CliRunner().invoke(
        command, given_words, obj=Planned(every(10 * NS, 6, output=9) if requests is None else requests)
    )


def test_the_command_prints_tables_with_what_is_assumed() -> None:
    result = ran("--pool", "2")
    assert result.exit_code == 0, result.output
    for text in (
        "Simulated, nothing measured: llama-13b (fp16) on L40S, 2 servers", "no_work", "execution-idle at 1 Hz",
        "5 s or longer", "efficiency", "0.4", "0.8", "servers", "a log's own note", "note: efficiency 0.6 is assumed",
    ):  # fmt: skip
        assert text in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines() if not line.startswith("note: "))


def test_the_command_as_json() -> None:
    found = json.loads(ran("--json", "--efficiency", "0.5", "--no-prefix-caching").output)
    assert found["version"] == 1
    assert [row["efficiency"] for row in found["sensitivity"]] == [0.4, 0.5, 0.6, 0.8]
    shares = [row["busy_share"] for row in found["sensitivity"]]
    assert shares == sorted(shares, reverse=True)
    assert found["setting"]["prefix_caching"] is False
    assert "requests" not in found
    assert [row["min_duration_s"] for row in found["execution_idle"]] == [1, 5]
