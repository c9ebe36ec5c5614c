"""`compare` on run databases whose truth is known: what differs comes first, numbers with the right sign, noise is no verdict."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from compare_plant import KERNELS, Pass, RunPlant
from engine_harness import COMMAND
from reading_runs import ingested
from trace_builder import DECODE, MIXED, MS, US, TraceBuilder

from analyzers.compare import COMPARE_VERSION, Comparison, Pair, Question, compare
from analyzers.comparison.judge import BETTER, SAME, UNJUDGED, WORSE, Row
from analyzers.report.compare_text import compare_lines
from traces.errors import NothingToAnalyze, UnreadableInput, UsageProblem

ARGV = ["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "1", "--model", "/x/model", "--enforce-eager"]
CONFIG: dict[str, Any] = {
    "engine_args": ["max-num-batched-tokens=2048"], "engine_argv": ARGV, "engine_env": {"VLLM_CPU_OMP_THREADS_BIND": "0", "MY_CODE": "x"},
    "seed": 0, "status": "complete", "versions": {"torch": "2.13.0"}, "engine_facts": {"max_num_batched_tokens": 2048, "block_size": 128},
    "workload": {"spec": "agent:observation=200,turns=3", "requests": 36, "sessions": 12},
}  # fmt: skip
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A run database: `write(name, Pass…, config=…, facts=…, recorded=…)`."""

    def made(
        name: str, *passes: Pass, config: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **rest: Any
    ) -> Path:
        plant = RunPlant(
            path=tmp_path / f"{name}.duckdb",
            seed=sum(map(ord, name)),
            config=CONFIG if config is None else config,
            facts=facts or {},
        )
        return plant.write(*passes, **rest)

    return made


def pair(base: object, cand: object, **question: Any) -> Pair:
    (found,) = compare(str(base), [str(cand)], Question(**question)).pairs
    return found


def row(found: Pair, metric_id: str) -> Row:
    return {item.metric_id: item for item in found.rows}[metric_id]


def verdicts(found: Pair) -> dict[str, str]:
    return {item.metric_id: item.verdict for item in found.rows if item.verdict not in (SAME, UNJUDGED)}


def named(found: Pair) -> dict[str, tuple[Any, Any]]:
    return {item.name: (item.base, item.cand) for item in found.differences}


# ---- the same thing twice


def test_the_same_run_twice_makes_no_difference(write: Write) -> None:
    path = write("a", Pass(), recorded=Pass())
    found = pair(path, path, drift=0.0)
    assert found.differences == ()
    assert {item.verdict for item in found.rows} == {SAME}
    assert all(item.change == pytest.approx(0) for item in found.rows)


@pytest.mark.parametrize("slow", [0.75, 1.0, 1.3])
def test_a_drift_of_thirty_percent_between_single_passes_is_no_verdict(write: Write, slow: float) -> None:
    found = pair(write("a", Pass(), recorded=Pass()), write("b", Pass(slow=slow), recorded=Pass(slow=slow)))
    assert verdicts(found) == {}
    assert any("one pass of each side" in text for text in found.cautions)


@pytest.mark.parametrize("slow", [1.048, 1.3])
def test_sides_that_change_places_change_nothing_but_the_direction(write: Write, slow: float) -> None:
    """Single passes of other sessions, at 1.048 near the threshold."""
    paths = write("fa", Pass(), recorded=Pass()), write("xfb", Pass(slow=slow), recorded=Pass(slow=slow))
    there, back = (pair(*sides, drift=0.0) for sides in (paths, paths[::-1]))
    mirrored = {BETTER: WORSE, WORSE: BETTER}
    rows = {item.metric_id: item for item in back.rows}
    assert len(rows) == len(there.rows) and any(item.method == "blocks of steps, unpaired" for item in back.rows)
    for item in there.rows:
        other = rows[item.metric_id]
        assert other.verdict == mirrored.get(item.verdict, item.verdict), item.metric_id
        if item.low is not None and other.high is not None:
            expected = -other.high if item.unit == "share" else 1 / (1 + other.high) - 1
            assert item.low == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_runs_of_two_databases_are_one_side(write: Write) -> None:
    """Also where each run is named, and a path that has a plus in it stays one."""
    first, second = write("a", Pass(), recorded=Pass()), write("b", Pass(), recorded=Pass())
    plus = write("a+b", Pass(), recorded=Pass())
    assert pair(f"{first}#r+{second}#r", first).passes_base == ("control", "control")
    assert pair(f"{first}+{second}#r@control", f"{plus}#r").passes_cand == ("control",)
    assert pair(f"{plus}+{first}", plus).passes_base == ("control", "control")
    for name in ("", "+", f"{first}+", " "):
        with pytest.raises(UsageProblem, match="no run is named"):
            pair(name, first)
    with pytest.raises(UnreadableInput, match="too long"):
        pair("a" * 300, first)


def test_passes_that_drift_by_twenty_percent_are_no_difference(write: Write) -> None:
    drifting = [1.0, 1.2, 0.9, 1.1, 1.25, 0.95]
    passes = [Pass(name=f"{'ab'[at % 2]}{at // 2}", start_s=20 * at, slow=slow) for at, slow in enumerate(drifting)]
    path = write("turns", *passes)
    found = pair(f"{path}@a*", f"{path}@b*")
    assert found.in_turns and found.passes_base == ("a0", "a1", "a2")
    assert any("came first in every round" in text for text in found.cautions)
    assert verdicts(found) == {}
    assert row(found, "latency.tpot_mean").method == "passes in turns"


# ---- planted differences


def test_what_differs_is_named_first_and_by_its_name(write: Write) -> None:
    other = CONFIG | {
        "engine_args": ["max_num_batched_tokens=64", "enforce-eager"], "engine_argv": [*ARGV[:5], "--port", "2", "--model", "/y/model"],
        "engine_env": {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "MY_CODE": "y", "PYTHONPATH": "/elsewhere"}, "seed": 1,
        "versions": {"torch": "2.12.0"}, "engine_facts": {"max_num_batched_tokens": 64, "block_size": 128},
        "workload": {"spec": "agent:turns=3,observation=400", "requests": 36, "sessions": 12},
    }  # fmt: skip
    base = write("a", Pass(), recorded=Pass(), clock_mhz=1980.0)
    cand = write(
        "b", Pass(prompt=900), recorded=Pass(), graph_mode="none", clock_mhz=1200.0, config=other,
        facts={"engine_version": "0.31.0", "dtype": "float16"},
    )  # fmt: skip
    found = pair(base, cand)
    assert named(found) == {
        "engine_version": ("0.32.0", "0.31.0"), "dtype": ("bfloat16", "float16"), "max-num-batched-tokens": ("2048", "64"),
        "enforce-eager": (None, "set"), "torch": ("2.13.0", "2.12.0"), "VLLM_CPU_OMP_THREADS_BIND": ("0", "0-1"),
        "MY_CODE": ("set, not shown", "set, not shown"), "graph mode of decode steps": ("full", "none"),
        "graph mode of prefill steps": ("full", "none"), "compute clock, MHz": (1980.0, 1200.0), "seed": (0, 1),
        "observation": ("200", "400"), "prompt tokens": (18_000.0, 32_400.0),
    }  # fmt: skip
    lines = compare_lines(compare(str(base), [str(cand)], Question()), limit=8)
    assert lines.index("what differs") < next(at for at, line in enumerate(lines) if line.startswith("latency"))


def one_kind(folder: Path, label: str) -> Path:
    """A device trace of eight steps with this label and nothing else: no log, no manifest."""
    folder.mkdir()
    trace = TraceBuilder(rank=0, base_ns=1_700_000_000_000_000_000)
    for number in range(8):
        trace.label((number + 1) * MS, 900 * US, label)
        trace.launch((number + 1) * MS + US, number + 1)
        trace.kernel((number + 1) * MS + 50 * US, 400 * US, number + 1, name="k")
    return ingested([trace.write(folder / "t.json")], folder / "t.duckdb")


def test_recordings_of_other_steps_are_not_called_alike(tmp_path: Path) -> None:
    decode, mixed = (one_kind(tmp_path / name, label) for name, label in (("a", DECODE), ("b", MIXED)))
    found = pair(decode, mixed)
    assert named(found) == {"kinds of steps": ("decode", "mixed"), "mixed_split": ("ok", "warning")}
    assert found.not_recorded == ("configuration", "environment", "workload")
    text = "\n".join(compare_lines(compare(str(decode), [str(mixed)], Question()), limit=8))
    assert "not recorded, so not compared: configuration, environment, workload" in text
    more = pair(decode, one_kind(tmp_path / "c", "execute_context_0(0)_generation_9(9)"))
    assert named(more) == {"decoded tokens of a decode step": (4, 9)}
    assert named(pair(decode, one_kind(tmp_path / "d", DECODE))) == {}


@pytest.mark.parametrize("key", ["hf-token", "api-key", "ssl_keyfile_password"])
def test_a_secret_is_not_shown(write: Write, key: str) -> None:
    base, cand = (write(name, Pass(), config=CONFIG | {"engine_args": [f"{key}={name}hunter2"]}) for name in "ab")
    found = pair(base, cand)
    assert set(named(found).values()) == {("set, not shown", "set, not shown")}
    assert "hunter2" not in json.dumps(compare(str(base), [str(cand)], Question()).to_dict(), default=str)


def test_a_number_of_the_model_is_no_secret_and_missing_peaks_are_named(write: Write) -> None:
    base = write(
        "a", Pass(), recorded=Pass(), config=CONFIG | {"model_config": {"experts_per_token": 4, "hf_token": "x"}}
    )
    cand = write(
        "b", Pass(), recorded=Pass(), config=CONFIG | {"model_config": {"experts_per_token": 8, "hf_token": "y"}}
    )
    with duckdb.connect(str(cand)) as con:
        con.execute("UPDATE devices SET peak_flops = 1e15, peak_bandwidth = NULL")
    with duckdb.connect(str(base)) as con:
        con.execute("UPDATE devices SET peak_flops = NULL, peak_bandwidth = NULL")
    told = named(pair(base, cand))
    assert told["model experts_per_token"] == (4, 8)
    assert told["model hf_token"] == ("set, not shown", "set, not shown")
    assert told["peak FLOP/s"] == (None, 1e15) and "peak bytes/s" not in told


@pytest.mark.parametrize(("slow", "word"), [(2.0, WORSE), (0.5, BETTER)])
def test_a_factor_of_two_is_found_with_the_right_sign_and_the_truth_inside(
    write: Write, slow: float, word: str
) -> None:
    passes = [Pass(name=f"{'ab'[at % 2]}{at}", start_s=30 * at, slow=slow if at % 2 else 1.0) for at in range(6)]
    path = write("turns", *passes)
    found = pair(f"{path}@a*", f"{path}@b*", gate=0.05)
    timed = [item for item in found.rows if item.unit == "ns" and item.change is not None]
    assert len(timed) >= 6
    for item in timed:
        assert item.verdict == word, item
        assert item.low is not None and item.high is not None and item.low <= slow - 1 <= item.high, item
        assert item.gated == (word == WORSE)
    assert row(found, "steps.engine.prefill_tokens_per_step").verdict == SAME, "the steps are as large as before"


def test_device_numbers_find_a_factor_of_three_in_steps_phases_and_kernels(write: Write) -> None:
    base, cand = write("a", recorded=Pass(), steps=1200), write("b", recorded=Pass(slow=3.0), steps=1200)
    found = pair(base, cand)
    for metric_id in (
        "steps.device.prefill", "steps.device.decode", "phases.prefill_ns_per_token", "phases.decode_ns_per_token",
        "categories.gemm", "kernels.attention.flash_v2",
    ):  # fmt: skip
        item = row(found, metric_id)
        assert item.verdict == WORSE, item
        assert item.low is not None and item.high is not None and item.low <= 2.0 <= item.high, item
    assert row(found, "phases.decode_ns_per_token").base == pytest.approx(2.5e6, rel=0.05)


def test_a_planted_cause_of_idleness_is_found(write: Write) -> None:
    base = write("a", recorded=Pass(), steps=600)
    cand = write("b", recorded=Pass(), idle_ms=20.0, cause="host_launch", steps=600)
    found = pair(base, cand)
    item = row(found, "idle.host_launch")
    assert (item.verdict, item.base) == (WORSE, 0.0)
    assert item.cand == pytest.approx(20 / 30, rel=0.05)
    assert item.low is not None and item.high is not None and item.low <= 20 / 30 <= item.high


def test_reuse_is_exact_where_nothing_but_counts_is_compared(write: Write) -> None:
    found = pair(write("a", Pass(cached=256)), write("b", Pass(cached=128)))
    item = row(found, "reuse.cached")
    assert (item.verdict, item.base, item.cand, item.drift) == (WORSE, 256 / 500, 128 / 500, 0.0)
    assert item.change == pytest.approx(-128 / 500)


# ---- like with like


def test_steps_of_another_batch_are_not_compared(write: Write) -> None:
    found = pair(write("a", recorded=Pass(), batch=4), write("b", recorded=Pass(slow=3), batch=32))
    item = row(found, "steps.device.decode")
    assert (item.verdict, item.reason) == (UNJUDGED, "no steps of like size on both sides")
    assert row(found, "steps.device.prefill").change is not None


def test_kernels_are_matched_by_name_by_operator_and_by_category(write: Write) -> None:
    other = (("gemm_b", "gemm", "aten::mm", 0.6), ("flash_v3", "attention", "attn3", 0.3), KERNELS[2])
    found = pair(write("a", recorded=Pass()), write("b", recorded=Pass(), kernels=other))
    kernels = {item.title: item.note for item in found.rows if item.group == "kernels"}
    assert kernels["aten::mm"].startswith("by operator: gemm_a → gemm_b")
    assert kernels["other attention kernels"].startswith("by category: flash_v2 → flash_v3")
    assert kernels["softmax"].startswith("per step")
    assert verdicts(found) == {}


def test_a_kernel_that_only_one_side_has_is_told_and_not_judged(write: Write) -> None:
    found = pair(
        write("a", recorded=Pass()),
        write("b", recorded=Pass(), kernels=(*KERNELS[:2], ("allreduce", "comm", "c10d", 0.1))),
    )
    assert row(found, "kernels.comm.allreduce").reason == "only the candidate has it: 10.0 % of its busy time"
    assert row(found, "kernels.sampling.softmax").reason == "only the base has it: 10.0 % of its busy time"


def test_speculation_is_compared_by_accepted_tokens(write: Write) -> None:
    """Three tokens drafted and taken in steps that last 1.5 times as long: half of the time per output token."""
    base = write("a", Pass(), recorded=Pass(), steps=2000)
    cand = write("b", Pass(drafted=3, slow=1.5), recorded=Pass(drafted=3, slow=1.5), steps=2000)
    found = pair(base, cand, drift=0.05)
    for metric_id in ("steps.engine.decode", "steps.device.decode", "phases.decode_ns_per_token"):
        item = row(found, metric_id)
        assert item.verdict == BETTER, item
        assert item.change == pytest.approx(-0.5, abs=0.05)


def test_drafts_whose_acceptance_is_not_known_withhold_decode(write: Write) -> None:
    base = write("a", recorded=Pass(), accepted=False)
    cand = write("b", recorded=Pass(drafted=3), accepted=False)
    found = pair(base, cand)
    why = "tokens were drafted, and how many were accepted is not recorded"
    for metric_id in ("steps.device.decode", "phases.decode_ns_per_token"):
        assert (row(found, metric_id).verdict, row(found, metric_id).reason) == (UNJUDGED, why)


def test_withheld_numbers_stay_withheld(write: Write) -> None:
    base, cand = write("a", recorded=Pass()), write("b", recorded=Pass(slow=5))
    with duckdb.connect(str(cand)) as con:
        con.execute(
            "INSERT INTO health (run_id, check_id, status, affects, message) VALUES "
            "('r', 'graph_kernels', 'withheld', '[\"devices.idle_ns\", \"devices\"]', 'graph launches without kernels')"
        )
    with pytest.raises(NothingToAnalyze, match="graph launches without kernels"):
        pair(base, cand)


# ---- sides


def test_repeats_that_did_other_work_are_refused(write: Write) -> None:
    path = write("a", Pass(name="a1"), Pass(name="b1", prompt=900))
    with pytest.raises(UsageProblem, match="did not do the same work"):
        pair(path, path)


@pytest.mark.parametrize(
    ("ending", "message"), [("@c9", "has no pass c9"), ("@", "no pass is named"), ("#nope", "has no run nope")]
)
def test_a_side_that_is_none_is_a_usage_problem(write: Write, ending: str, message: str) -> None:
    path = write("a", Pass(name="a1"))
    with pytest.raises(UsageProblem, match=message):
        pair(path, f"{path}{ending}")


def test_several_runs_of_a_side_are_repeats(write: Write) -> None:
    runs = [
        write(f"r{at}", Pass(start_s=60 * at, slow=2.0 if at % 2 else 1.0), recorded=Pass(slow=2.0 if at % 2 else 1.0))
        for at in range(6)
    ]
    found = pair("+".join(map(str, runs[::2])), "+".join(map(str, runs[1::2])))
    assert found.in_turns
    assert row(found, "latency.tpot_mean").verdict == WORSE
    assert row(found, "steps.device.decode").passes_base == 3


def test_runs_of_a_side_that_were_made_in_another_way_are_named(write: Write) -> None:
    runs = [write("r1", Pass()), write("r2", Pass(), config=CONFIG | {"seed": 5}), write("r3", Pass())]
    found = pair(f"{runs[0]}+{runs[1]}", runs[2])
    assert [(item.area, item.name, item.cand) for item in found.differences] == [("repeats", "seed (workload)", 5)]


def test_each_candidate_is_compared_with_base_at_a_stricter_level(write: Write) -> None:
    runs = [str(write(name, Pass())) for name in "abc"]
    found = compare(runs[0], runs[1:], Question())
    assert [item.cand for item in found.pairs] == runs[1:]
    assert {item.confidence for item in found.pairs} == {0.975}


# ---- the command


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "compare", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_gate_exits_6_only_when_the_interval_clears_it(write: Write) -> None:
    base, slow, near = write("a", Pass()), write("b", Pass(slow=3)), write("c", Pass(slow=1.2))
    tripped = run(base, slow, "--gate", "5%")
    assert (tripped.returncode, "tripped" in tripped.stdout) == (6, True)
    assert tripped.stderr.startswith("error: the gate of 5% tripped")
    assert run(base, near, "--gate", "5%").returncode == 0
    assert run(slow, base, "--gate", "5%").returncode == 0, "faster is no reason to stop"
    assert run(base, slow, "--gate", "900%").returncode == 0


def test_a_gate_with_nothing_to_read_does_not_pass(write: Write) -> None:
    empty = [write(name) for name in "ab"]
    ended = run(*empty, "--gate", "5%")
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "error: the runs have no number in common" in ended.stderr


@pytest.mark.parametrize("text", ["5", "five", "-1%", "nan%", "1e9%"])
def test_a_gate_that_is_no_percentage_is_refused(write: Write, text: str) -> None:
    path = write("a", Pass())
    ended = run(path, path, f"--gate={text}")
    assert (ended.returncode, "cannot read --gate" in ended.stderr) == (2, True)


def test_json_is_versioned_and_has_what_the_table_has(write: Write) -> None:
    base, cand = write("a", Pass(), recorded=Pass()), write("b", Pass(slow=3), recorded=Pass(slow=3))
    ended = run(base, cand, "--json", "--gate", "10%")
    data = json.loads(ended.stdout)
    assert ended.returncode == 6
    assert set(data) == {"version", "confidence", "gate", "tripped", "pairs"}
    assert (data["version"], data["confidence"], data["gate"]) == (COMPARE_VERSION, 0.95, 0.1)
    (one,) = data["pairs"]
    assert set(one) == set(Pair.__dataclass_fields__)
    assert all(set(item) == set(Row.__dataclass_fields__) for item in one["rows"])
    for item in one["rows"]:
        if item["change"] is not None:
            assert item["low"] <= item["change"] <= item["high"]
            assert (item["verdict"] == SAME) == (item["low"] <= 0 <= item["high"])
            assert item["n_base"] > 0 and item["n_cand"] > 0 and item["method"]
        else:
            assert item["verdict"] == UNJUDGED and item["reason"]
    assert one["judged"] == sum(item["change"] is not None for item in one["rows"])
    assert len(data["tripped"]) == sum(item["gated"] for item in one["rows"])


def test_hostile_text_is_printed_as_text_and_lines_fit(write: Write) -> None:
    evil = "\x1b[31m<script>alert(1)</script>\n" + "k" * 10_000
    config = CONFIG | {
        "engine_args": [f"{evil}={evil}"],
        "versions": {"torch": ["not", "a text"]},
        "workload": {"spec": evil},
    }
    base = write("a", Pass(name="a1"), recorded=Pass(), kernels=((evil, evil, evil, 1.0),))
    cand = write(
        "b",
        Pass(name="a1"),
        recorded=Pass(),
        kernels=((evil + "2", evil, evil, 1.0),),
        config=config,
        facts={"engine_version": evil},
    )
    ended = run(base, cand)
    assert ended.returncode == 0, ended.stderr
    assert "\x1b" not in ended.stdout
    assert max(len(line) for line in ended.stdout.splitlines()) <= 100


@pytest.mark.parametrize(
    "config",
    [
        "[]",
        "null",
        "7",
        '{"engine_args": 5, "engine_argv": {}, "engine_env": [], "workload": []}',
        '{"seed": {"a": []}}',
    ],
)
def test_a_configuration_that_is_none_is_read_as_not_known(write: Write, config: str) -> None:
    base, cand = write("a", Pass(), recorded=Pass()), write("b", Pass(), recorded=Pass(), facts={"config": config})
    assert verdicts(pair(base, cand)) == {}


def test_few_requests_are_told_and_not_judged(write: Write) -> None:
    paths = [write(name, Pass(sessions=1, turns=2)) for name in "ab"]
    ended = run(*paths)
    assert ended.returncode == 0, ended.stderr
    assert "not judged, requests: 2, and 6 are needed to tell a spread" in ended.stdout
    gated = run(*paths, "--gate", "5%")
    assert gated.returncode == 0, "the steps of the ledger are enough"


def test_a_run_that_is_not_analyzed_or_has_no_rows_is_said_not_to_be_comparable(write: Write) -> None:
    found = pair(write("a", Pass(), recorded=Pass()), write("b", Pass()))
    assert row(found, "steps.device").reason == "only one of the sides has steps with device activity"
    with pytest.raises(NothingToAnalyze, match="no answered request"):
        pair(write("c", Pass()), write("d"))


def test_the_result_is_a_value(write: Write) -> None:
    path = write("a", Pass())
    found = compare(str(path), [str(path)], Question())
    assert isinstance(found, Comparison)
    assert json.loads(json.dumps(found.to_dict()))["pairs"][0]["base"] == str(path)


@pytest.mark.parametrize(
    ("affects", "gone", "kept"),
    [
        ('["gaps.cause"]', "idle.causes", "idle.all"),
        ('["kernels.category"]', "categories.device", "steps.device.decode"),
        ('["steps.kind", "steps.prefill_ns"]', "phases.device", "steps.device.decode"),
        ('["ledger_steps"]', "steps.engine", "steps.device.decode"),
        ('["steps", "kernels"]', "steps.device", "latency.tpot_mean"),
    ],
)
def test_what_health_withholds_of_one_side_is_withheld_and_nothing_else(
    write: Write, affects: str, gone: str, kept: str
) -> None:
    base, cand = write("a", Pass(), recorded=Pass()), write("b", Pass(), recorded=Pass())
    with duckdb.connect(str(cand)) as con:
        con.execute(
            "INSERT INTO health (run_id, check_id, status, affects, message) VALUES ('r', 'c', 'withheld', ?, 'why')",
            [affects],
        )
    found = pair(base, cand)
    assert (row(found, gone).verdict, row(found, gone).reason) == (UNJUDGED, "why")
    assert row(found, kept).change is not None
    assert ("c", "ok", "withheld") in [(item.name, item.base, item.cand) for item in found.differences]


def test_a_plus_in_a_path_is_part_of_it(write: Write, tmp_path: Path) -> None:
    path = write("a+b", Pass(name="a1"))
    assert pair(path, f"{path}@a1").passes_cand == ("a1",)
    assert path.parent == tmp_path


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE requests SET finished_ns = arrival_ns - 5, last_token_ns = arrival_ns - 5",
        "UPDATE requests SET arrival_ns = NULL",
        "UPDATE requests SET output_tokens = 0, prompt_tokens = 0",
        "UPDATE requests SET session_id = NULL, turn = NULL",
        "UPDATE requests SET finished_ns = arrival_ns + 1, last_token_ns = arrival_ns + 1, first_token_ns = arrival_ns + 1",
        "UPDATE requests SET arrival_ns = -9223372036854775000, first_token_ns = 9223372036854775000",
        "UPDATE tokens SET ts_ns = 0",
        "UPDATE ledger_rows SET accepted_tokens = 0",
        "UPDATE ledger_rows SET accepted_tokens = NULL, prompt_tokens = NULL",
        "UPDATE steps SET kind = NULL, decode_reqs = NULL",
        "UPDATE steps SET busy_ns = -1",
        "UPDATE gaps SET start_ns = -5, cause = NULL",
        "UPDATE kernels SET name = NULL, category = NULL, op_name = NULL, busy_ns = NULL",
        "UPDATE devices SET window_end_ns = window_start_ns, name = NULL",
        "UPDATE runs SET window_end_ns = window_start_ns - 1, clock = NULL, config = NULL",
    ],
)  # fmt: skip
def test_rows_that_make_no_sense_end_in_words(write: Write, change: str) -> None:
    base, cand = write("a", Pass(), recorded=Pass()), write("b", Pass(), recorded=Pass())
    with duckdb.connect(str(cand)) as con:
        con.execute(change)
    try:
        result = compare(str(base), [str(cand)], Question(gate=0.01))
    except (NothingToAnalyze, UnreadableInput, UsageProblem):
        return
    json.dumps(result.to_dict(), allow_nan=False)
    assert max(map(len, compare_lines(result, limit=8))) <= 100


@pytest.mark.parametrize(
    ("busy", "others", "found_worse", "words"),
    [
        (None, 0.0, False, "is not recorded"),
        (0.99, None, False, "were 99 % busy"),
        (0.99, 0.3, False, "others took 30 %"),
        (0.99, 0.04, True, None),  # the engine's own: it keeps processors busy by waiting
        (0.99, "x", False, "were 99 % busy"),
        (0.6, None, True, None),
    ],
)
def test_an_engine_on_processors_without_time_to_spare_is_allowed_a_factor_of_two(
    write: Write, busy: float | None, others: object, found_worse: bool, words: str | None
) -> None:
    told = {"facts": {"device_kind": "cpu"}, "config": CONFIG | {"passes": [{"name": "control", "others_cpu": others}]}}
    base, cand = write("a", Pass(turns=12), **told), write("b", Pass(turns=12, slow=1.8), **told)
    for path in (base, cand):
        with duckdb.connect(str(path)) as con:
            if busy is not None:
                con.execute(
                    "INSERT INTO telemetry (run_id, ts_ns, cpu_util) SELECT 'r', arrival_ns + 1, ? FROM requests",
                    [busy],
                )
    found = pair(base, cand)
    assert (row(found, "latency.tpot_mean").verdict == WORSE) is found_worse
    assert found.drift == pytest.approx(0.3 if found_worse else 1.0)
    if words is not None:
        assert any(words in text for text in found.cautions)
