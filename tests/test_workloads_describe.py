"""`stepscope workload`: what it says of real logs equals a naive script; lateness; a replay against a stub server."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from engine_harness import profile_stub
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_logs import S, command, mooncake, shared

from profiler.lateness import Lateness
from profiler.workloads.arrivals import planned_arrivals
from profiler.workloads.describe import Rates, describe
from profiler.workloads.synthesis import fitted
from traces.errors import StepscopeError

# --describe equals a naive script on real logs


def naive_rates(arrivals_ns: list[int]) -> dict[str, Any]:
    """Counted with a loop, from nanoseconds in order."""
    counts = Counter((ns - arrivals_ns[0]) // S for ns in arrivals_ns)
    seconds = max(counts) + 1
    mean = len(arrivals_ns) / seconds
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(arrivals_ns))
    return {
        "n": len(arrivals_ns), "seconds": seconds, "span_ns": arrivals_ns[-1] - arrivals_ns[0],
        "peak_per_s": max(counts.values()), "mean_per_s": pytest.approx(mean),
        "empty_share": pytest.approx(1 - len(counts) / seconds),
        "dispersion": pytest.approx(sum((counts.get(second, 0) - mean) ** 2 for second in range(seconds)) / seconds / mean),
        "gap_p50": gaps[-(-len(gaps) // 2) - 1], "gap_p99": gaps[-(-len(gaps) * 99 // 100) - 1],
    }  # fmt: skip


def shown_rates(rates: Rates) -> dict[str, Any]:
    assert rates.gaps_ns is not None
    names = ("n", "seconds", "span_ns", "peak_per_s", "mean_per_s", "empty_share", "dispersion")
    return {name: getattr(rates, name) for name in names} | {"gap_p50": rates.gaps_ns.p50, "gap_p99": rates.gaps_ns.p99}


def naive_percentile(values: list[int], percent: int) -> int:
    return sorted(values)[-(-len(values) * percent // 100) - 1]


@pytest.mark.parametrize("name", ["code", "conv"])
def test_describing_azure_equals_a_naive_script(name: str) -> None:
    path = shared(f"AzureLLMInferenceTrace_{name}_2023.csv")
    with path.open(newline="") as source:
        rows = [
            (row["TIMESTAMP"], int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(source)
        ]
    first = datetime.fromisoformat(rows[0][0].split(".")[0])
    times = []
    for text, _, _ in rows:
        whole, fraction = text.split(".")
        times.append((datetime.fromisoformat(whole) - first).total_seconds() * S + int(fraction.ljust(9, "0")))
    found = describe(planned_arrivals(f"replay:path={path}", 0), spec="", seed=0)
    assert found.rates is not None
    assert shown_rates(found.rates) == naive_rates([int(ns) for ns in times])
    for values, spread in zip(
        zip(*[row[1:] for row in rows], strict=True), (found.prompt_tokens, found.output_tokens), strict=True
    ):
        assert (spread.n, spread.total, spread.least, spread.most) == (len(rows), sum(values), min(values), max(values))
        assert [spread.p1, spread.p10, spread.p50, spread.p90, spread.p99] == [
            naive_percentile(list(values), percent) for percent in (1, 10, 50, 90, 99)
        ]
    assert found.prefix.infinite_tokens is None and found.unknown["prefix"]
    if name == "code":
        assert round(found.rates.empty_share * 100) == 73 and round(found.rates.dispersion, 1) == 13.2


@pytest.mark.parametrize("name", ["conversation_first400", "synthetic_trace"])
def test_describing_mooncake_equals_a_naive_script(name: str) -> None:
    path = shared(f"mooncake_fast25_{name}.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    cache: dict[int, None] = {}
    size, infinite, cached = 700, 0, 0
    for row in rows:
        blocks = row["hash_ids"]
        leading = next((n for n, block in enumerate(blocks) if block not in seen), len(blocks))
        infinite += min(leading * 512, row["input_length"])
        kept = next((n for n, block in enumerate(blocks) if block not in cache), len(blocks))
        cached += min(kept * 512, row["input_length"])
        seen.update(blocks)
        for block in reversed(blocks):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > size:
            del cache[next(iter(cache))]
    found = describe(planned_arrivals(f"replay:path={path}", 0), spec="", seed=0, cache_blocks=size)
    assert (found.prefix.infinite_tokens, found.prefix.cached_tokens) == (infinite, cached)
    assert found.prefix.known_tokens == sum(row["input_length"] for row in rows)
    assert found.rates is not None and shown_rates(found.rates) == naive_rates(
        [row["timestamp"] * 10**6 for row in rows]
    )
    if name == "synthetic_trace":
        assert round(infinite / found.prefix.known_tokens * 100, 1) == 65.1


def test_describing_coding_agents_equals_a_naive_script() -> None:
    path = shared("coding_agent_sessions.csv")
    with path.open(newline="") as source:
        rows = list(csv.DictReader(source))
    found = describe(planned_arrivals(f"replay:path={path}", 0), spec="", seed=0)
    turns = Counter((row["trace_id"], row["agent"]) for row in rows)
    assert (found.requests, found.sessions, found.closed) == (len(rows), len(turns), True)
    assert found.turns is not None and (found.turns.p50, found.turns.most) == (
        naive_percentile(list(turns.values()), 50), max(turns.values()),
    )  # fmt: skip
    assert found.prefix.infinite_tokens == sum(int(row["cached_tokens_infcache"]) for row in rows)
    assert found.prefix.known_tokens == found.prompt_tokens.total == sum(int(row["in_tokens"]) for row in rows)
    assert found.prompt_tokens.p90 == naive_percentile([int(row["in_tokens"]) for row in rows], 90)
    waits: list[int] = []
    in_sessions = sorted(
        rows, key=lambda row: (row["trace_id"], row["agent"])
    )  # a sub-agent's stand among its parent's
    for earlier, later in itertools.pairwise(in_sessions):
        if (earlier["trace_id"], earlier["agent"]) == (later["trace_id"], later["agent"]):
            gap = (float(later["t_s"]) - float(earlier["t_s"])) * S
            told = float(later["think_time_s"]) * S if later["think_time_s"] else None
            if told is None and earlier["api_time_s"]:
                told = gap - float(earlier["api_time_s"]) * S
            if told is not None and "tool_result" in later["input_types"] and (wait := round(max(0, min(told, gap)))):
                waits.append(wait)
    assert found.tool_waits_ns is not None
    assert (found.tool_waits_ns.n, found.tool_waits_ns.total) == (len(waits), sum(waits))
    assert found.tool_waits_ns.p50 == naive_percentile(waits, 50)
    assert found.rates is None and found.unknown["rates"] == "all 61 arrivals are at the same time"


# Lateness


def test_lateness_next_to_the_gaps() -> None:
    late = Lateness.of([0] * 98 + [50, 10**9])
    assert (late.n, late.p50_ns, late.p99_ns, late.max_ns) == (100, 0, 50, 10**9)
    assert late.problem(100 * S) is None
    behind = Lateness.of([20_000_000] * 100)
    assert behind.problem(100 * S) is None  # 20 ms of a second
    said = behind.problem(S)  # of 10 ms
    assert said is not None and "half of its 100 requests were sent 20.0 ms or more after they were due" in said
    assert Lateness.of([]).problem(0) is None


# The command


def test_the_command_describes_and_shows(tmp_path: Path) -> None:
    spec = mooncake(tmp_path / "log", (0, 1024, (1, 2)), (1000, 1100, (1, 2, 3)), (4000, 10, (9,)))
    shown = command("workload", spec, "--describe", "--cache-blocks", "2", "--rate-scale", "2")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "3 requests, no sessions; open loop" in shown.stdout
    assert "reusable with an infinite cache: 48.0 % (1,024 of 2,134)" in shown.stdout
    assert all(len(line) <= 100 for line in shown.stdout.splitlines())
    described = json.loads(command("workload", spec, "--describe", "--json", "--cache-tokens", "600").stdout)
    assert described["prefix"] == {
        "by": "blocks", "known_tokens": 2134, "infinite_tokens": 1024, "cache_tokens": 600, "cached_tokens": 512,
    }  # fmt: skip
    head = json.loads(command("workload", spec, "--json", "--limit", "1").stdout)
    assert (head["requests"], head["block_tokens"], len(head["head"])) == (3, 512, 1)
    assert "… and 2 more" in command("workload", spec, "--limit", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("workload", "nope"), 2, "error: unknown workload 'nope'"),
        (("workload", "replay:path=/no/such/log"), 3, "error: cannot read /no/such/log: No such file or directory"),
        (("workload", "poisson", "--rate-scale", "0"), 2, "error: Invalid value"),
        (("workload", "agent", "--context", "500"), 2, "error: workload agent needs up to"),
        (
            ("workload", "poisson:rate_scale=2", "--rate-scale", "3"),
            2,
            "error: option rate_scale of workload poisson is given twice",
        ),
        (
            ("workload", "poisson", "--cache-tokens", "1", "--cache-blocks", "1", "--describe"),
            2,
            "error: --cache-tokens and",
        ),
        (("workload", "poisson", "--cache-blocks", "1", "--describe"), 2, "error: the prompts are not known in blocks"),
    ],
)
def test_the_command_refuses(arguments: tuple[str, ...], code: int, message: str) -> None:
    ended = command(*arguments)
    assert (ended.returncode, ended.stdout) == (code, "") and ended.stderr.startswith(message)


def test_a_log_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Timestamp,Session ID,Request tokens,Response tokens\n0,\x1b[2Jevil,9,3\n")
    shown = command("workload", f"replay:path={path}")
    assert shown.returncode == 0 and "\x1b" not in shown.stdout and "\\x1b[2Jevil" in shown.stdout


def test_profile_replays_a_log_against_a_server(tmp_path: Path) -> None:
    path = shared("AzureLLMInferenceTrace_code_2023.csv")
    ended = profile_stub(
        tmp_path, "--workload", f"replay:path={path}", "--first", "12", "--rate-scale", "3", "--no-trace", "--quiet"
    )
    assert ended.code == 0, ended.err
    assert "note: 4 of 12 prompts are cut to the model's 4,096 tokens of context" in ended.err
    frame = fitted(planned_arrivals(f"replay:path={path}", 0, first=12, rate_scale=3), 4096).frame
    lines = [json.loads(line) for line in (ended.run_dir / "requests.jsonl").read_text().splitlines()]
    control = sorted((line for line in lines if line["pass"] == "control"), key=lambda line: int(line["index"]))
    assert [line["output_tokens"] for line in control] == frame["output_tokens"].to_list()
    (passed,) = (item for item in ended.manifest["passes"] if item["name"] == "control")  # type: ignore[attr-defined]
    assert [line["planned_ns"] - passed["start_ns"] for line in control] == frame["arrival_ns"].to_list()
    late = sorted(line["late_ns"] for line in control)
    assert (passed["late_p50_ns"], passed["late_p99_ns"], passed["late_max_ns"]) == (late[5], late[11], late[11])
    assert "first=12" in ended.manifest["workload"]["spec"] and ended.manifest["workload"]["notes"]  # type: ignore[index]


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40))
def test_no_specification_does_more_than_raise_a_typed_error(text: str) -> None:
    for name in ("replay:", "poisson:n=3,", "burst:n=3,prompt=", "gamma:n=3,cv="):
        with contextlib.suppress(StepscopeError):
            assert planned_arrivals(name + text, 0).frame.height > 0
