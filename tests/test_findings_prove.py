"""Proofs: what is run again and how it is changed, what is read from the passes, and the verdict."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from ledger_run import at
from loop_run import Law, Turn, loop, tiled

import cli
from analyzers import findings, proof
from analyzers.finding import Interval, Proof
from analyzers.presets import preset
from analyzers.proof import measured, read_case
from analyzers.report.findings_text import findings_lines, verdict_lines
from analyzers.verdict import Case, Pass, judge
from profiler.progress import Silent
from profiler.prove import _trials, repeat_of, run_proof
from traces.errors import NothingToAnalyze, StepscopeError, UsageProblem
from traces.store import TraceStore

LOST = [Turn(prompt=400 + 120 * turn, cached=0, lost_until=300 + 120 * turn if turn else 0) for turn in range(5)]
SPEC = "agent:output=4,sessions=1,timestamp=head,turns=2"


def case(low: float | None = 0.2, high: float = 0.4, change: Proof | None = None) -> Case:
    interval = None if low is None else Interval(low=low, high=high)
    return Case(
        finding_id="agents.volatile-system", title="t", config={}, change=change or Proof(workload=SPEC),
        predicted=None if low is None else (low + high) / 2, interval=interval,
    )  # fmt: skip


def passes(*times: float) -> list[Pass]:
    """Step times in turns: A1, B1, A2, B2, …"""
    return [
        Pass(side="AB"[n % 2], name=f"{'AB'[n % 2]}{n // 2 + 1}", step_ns=round(time * 1e6), steps=9, requests=2, failed=0,
             prompt_tokens=1000, cached_tokens=500, output_tokens=8)
        for n, time in enumerate(times)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("times", "interval", "word"),
    [
        ((100, 70, 101, 71), (0.2, 0.4), "confirmed"),
        ((100, 70, 101, 71), (0.5, 0.6), "refuted"),
        ((100, 70, 101, 71), (0.31, 0.6), "unclear"),  # 29.85 %, and the noise reaches 31
        ((100, 99, 101, 102), (0.2, 0.4), "no difference"),
        ((100, 70, 160, 90), (0.2, 0.4), "no difference"),  # 38 %, and twice as much noise
        ((100, 140, 101, 141), (0.2, 0.4), "refuted"),  # it got worse
        ((100, 100, 100, 100), (0.2, 0.4), "no difference"),
        ((100, 70, 101, 71), (None, 0), "unclear"),  # nothing was predicted
    ],
)
def test_the_verdict(times: tuple[float, ...], interval: tuple[float | None, float], word: str) -> None:
    verdict = judge(case(*interval), passes(*times), "d")
    assert verdict.verdict == word
    a, b = sum(times[::2]) / 2, sum(times[1::2]) / 2
    assert verdict.measured_gain == pytest.approx(1 - b / a)
    assert verdict.baseline_spread == pytest.approx(abs(times[0] - times[2]) / a)
    assert verdict.changed_spread == pytest.approx(abs(times[1] - times[3]) / b)
    assert (verdict.rounds, verdict.baseline_ns, verdict.changed_ns) == (2, round(a * 1e6), round(b * 1e6))


def test_the_noise_is_that_of_equal_passes() -> None:
    """Worked by hand: variances 2 and 8 (ms²), pooled 5, t(2) = 4.303."""
    verdict = judge(case(), passes(99, 58, 101, 62), "d")
    assert verdict.noise == pytest.approx(4.303 * 5**0.5 / 100)
    six = judge(case(), passes(99, 58, 101, 62, 100, 60), "d")
    assert six.noise == pytest.approx(2.776 * ((1 + 4) / 2 * (2 / 3)) ** 0.5 / 100)


@pytest.mark.parametrize("rounds", [2, 3, 5, 12])
def test_equal_things_differ_in_one_of_twenty_at_most(rounds: int) -> None:
    draw = random.Random(rounds)
    told = [
        judge(case(None), passes(*(draw.gauss(100, 10) for _ in range(2 * rounds))), "d").verdict for _ in range(1000)
    ]
    assert told.count("no difference") >= 930


@pytest.mark.parametrize("times", [(100, 70), (), (100, 70, 100)])
def test_too_few_passes_are_no_verdict(times: tuple[float, ...]) -> None:
    with pytest.raises(NothingToAnalyze, match="not complete"):
        judge(case(), passes(*times), "d")


def manifest(**changed: Any) -> dict[str, Any]:
    return {
        "model": "tiny", "engine": "vllm", "device_kind": "cpu", "seed": 3, "engine_python": "/evil/python", "workload": {"spec": SPEC},
        "engine_args": ["block-size=32", "num_gpu_blocks_override=40", "max-model-len=2048"],
    } | changed  # fmt: skip


def test_a_changed_workload_shares_the_engine_and_changed_flags_do_not(tmp_path: Path) -> None:
    changed = Proof(workload=SPEC.replace("head", "no")).to_dict()
    repeat = repeat_of(manifest(), preset("tiny"), changed, python=Path("/my/python"))
    (trial,) = _trials(repeat, 2, tmp_path)
    assert [name for name, _ in trial.passes] == ["A0", "B0", "A1", "B1", "A2", "B2"]
    assert {name[0]: plan.spec.partition("timestamp=")[2][:4] for name, plan in trial.passes} == {
        "A": "head",
        "B": "no,t",
    }
    assert {plan.seed for _, plan in trial.passes} == {3}
    assert trial.config.engine_args == tuple(manifest()["engine_args"]) and not trial.config.trace
    assert str(trial.config.python) == "/my/python", "never a program that the database names"

    flags = Proof(without=("num-gpu-blocks-override",), engine_args=("num-gpu-blocks-override=80",)).to_dict()
    a, b = _trials(repeat_of(manifest(), preset("tiny"), flags), 3, tmp_path)
    assert ([name for name, _ in a.passes], [name for name, _ in b.passes]) == (
        ["A0", "A1", "A2", "A3"], ["B0", "B1", "B2", "B3"],
    )  # fmt: skip
    assert a.config.engine_args == tuple(manifest()["engine_args"])
    assert b.config.engine_args == ("block-size=32", "max-model-len=2048", "num-gpu-blocks-override=80")
    assert a.config.out != b.config.out
    assert [plan for _, plan in a.passes] == [plan for _, plan in b.passes]


def test_settings_of_the_environment_are_repeated_but_nothing_that_names_code(tmp_path: Path) -> None:
    recorded = {
        "VLLM_CPU_OMP_THREADS_BIND": "0-1", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "3", "LD_PRELOAD": "evil.so",
        "VLLM_PLUGINS": "evil", "PYTHONPATH": "/evil", "VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1", "VLLM_API_KEY": "x", "HOME": "x",
        "VLLM_LOGGING_CONFIG_PATH": "evil.json", "SGLANG_PLUGINS": "evil", "TORCH_HOME": "/evil", "OMP_EVIL": 5,
    }  # fmt: skip
    given = manifest(engine_env=recorded)
    for trial in _trials(repeat_of(given, preset("tiny"), {}, engine_env=("OMP_NUM_THREADS=1",)), 2, tmp_path):
        assert trial.config.engine_env == {
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "OMP_NUM_THREADS": "1",
            "OMP_EVIL": "5",
        }
    assert repeat_of(manifest(engine_env=["x"]), None, {}).engine_env == ()


def test_two_engines_on_one_gpu_get_half_of_its_memory_each() -> None:
    flags = Proof(without=("no-enable-prefix-caching",)).to_dict()
    on_gpu = {"device_kind": "cuda", "engine_args": ["no_enable_prefix_caching", "gpu_memory_utilization=0.8"]}
    assert repeat_of(manifest(**on_gpu), None, flags).args == (
        ("no_enable_prefix_caching", "gpu-memory-utilization=0.4"), ("gpu-memory-utilization=0.4",),
    )  # fmt: skip
    plain = repeat_of(manifest(device_kind="cuda", engine_args=["a"]), None, Proof(engine_args=("b=1",)).to_dict())
    assert plain.args == (("a", "gpu-memory-utilization=0.45"), ("a", "b=1", "gpu-memory-utilization=0.45"))
    assert repeat_of(manifest(**on_gpu), None, {}).args == ((*on_gpu["engine_args"],),) * 2, (
        "one engine keeps what it has"
    )


def test_nothing_changed_is_one_engine_with_the_same_passes(tmp_path: Path) -> None:
    (trial,) = _trials(repeat_of(manifest(), preset("tiny"), Proof().to_dict()), 2, tmp_path)
    assert len({id(plan.spec) and plan.spec for _, plan in trial.passes}) == 1
    assert len(trial.passes) == 6


@pytest.mark.parametrize("rounds", [1, 0, 21])
def test_one_pass_tells_nothing_of_the_noise(tmp_path: Path, rounds: int) -> None:
    with pytest.raises(UsageProblem, match="rounds"):
        run_proof(repeat_of(manifest(), None, {}), rounds=rounds, out=tmp_path / "x", observer=Silent())


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageProblem, match="exists"):
        run_proof(repeat_of(manifest(), None, {}), rounds=2, out=tmp_path, observer=Silent())


@pytest.mark.parametrize("broken", [{"workload": 3}, {"seed": "x"}, {"engine_args": None}, {"workload": {}}])
def test_a_manifest_that_does_not_say_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(UsageProblem):
        repeat_of(manifest(**broken), None, {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one finding."""
    run = loop(tmp_path_factory.mktemp("loop") / "run", LOST, Law())
    database = run.ingest()
    run_id = tiled(database, run, LOST)
    with duckdb.connect(str(database)) as con:
        findings.fill(con, run_id)
    return database


@pytest.fixture
def database(recorded: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    target = tmp_path / "run.duckdb"
    target.write_bytes(recorded.read_bytes())
    return target


def test_the_case_of_a_finding_and_of_none(database: Path) -> None:
    with TraceStore.open(database) as store:
        known = read_case(store, "agents.volatile-system")
        assert known.change.workload is not None and "timestamp=no" in known.change.workload
        assert known.interval is not None and known.predicted in known.interval
        itself = read_case(store, "none")
        assert (itself.change, itself.interval) == (Proof(), None)
        with pytest.raises(UsageProblem, match="no finding") as error:
            read_case(store, "agents.evicted")
        assert "agents.volatile-system" in error.value.hint


@pytest.mark.parametrize(
    ("sql", "finding", "code", "words"),
    [
        ("UPDATE runs SET source = 'ingest'", "agents.volatile-system", 5, "read from a recording"),
        ("UPDATE runs SET source = 'ingest'", "none", 5, "read from a recording"),
        ("UPDATE runs SET config = json_merge_patch(config, '{\"engine_args\": null}')", "none", 5, "does not say how"),
        ("UPDATE runs SET config = '[1]'", "none", 5, "does not say how"),
        ("UPDATE findings SET proof = NULL", "agents.volatile-system", 5, "has no change that could be run"),
        ("UPDATE findings SET proof = '[3]'", "agents.volatile-system", 2, "cannot be read"),
        ("UPDATE findings SET proof = '{\"workload\": 7}'", "agents.volatile-system", 2, "cannot be read"),
        ("UPDATE findings SET proof = '{\"without\": [{}]}'", "agents.volatile-system", 2, "cannot be read"),
    ],
)
def test_what_cannot_be_run_again_says_why(database: Path, sql: str, finding: str, code: int, words: str) -> None:
    with duckdb.connect(str(database)) as con:
        con.execute(sql)
    with TraceStore.open(database) as store, pytest.raises(StepscopeError, match=words) as error:
        read_case(store, finding)
    assert (error.value.exit_code, bool(error.value.hint)) == (code, True)


def test_a_verdict_is_kept_beside_its_finding_and_replaces_nothing(database: Path) -> None:
    with TraceStore.open(database) as store:
        run_id, known = store.run_id, read_case(store, "agents.volatile-system")
    for number, times in enumerate([(100, 99, 101, 102), (100, 40, 101, 41)]):
        proof.keep(database, run_id, judge(known, passes(*times), "d"), created_ns=number)
    proof.keep(database, run_id, judge(case(None, change=Proof()), passes(100, 99, 101, 102), "d"), created_ns=9)
    with duckdb.connect(str(database)) as con:
        con.execute("UPDATE proofs SET finding_id = 'none' WHERE created_ns = 9")
    with TraceStore.open(database) as store:
        assert store.table("proofs").height == 3
        report = findings.read_findings(store)
        (row,) = [item for item in report.findings if item["finding_id"] == "agents.volatile-system"]
        assert row["proved"]["measured_gain"] == pytest.approx(1 - 81 / 201)
        assert report.baseline is not None and report.baseline["verdict"] == "no difference"
        text = "\n".join(findings_lines(report, "r", limit=3))
    assert "measured 59.7 % ±" in text and "compared with itself: no difference" in text


@pytest.mark.parametrize("change", [
    Proof(), Proof(workload="agent:" + ",".join(f"option_{n}={n}" for n in range(40))),
    Proof(without=("a",), engine_args=("b=1\x1b[31m",)),
])  # fmt: skip
def test_the_text_of_a_verdict_fits_a_terminal(change: Proof) -> None:
    for interval in ((0.2, 0.4), (None, 0)):
        lines = verdict_lines(judge(case(*interval, change=change), passes(100, 70, 101, 71), "some/where"))
        assert all(len(line) <= 100 and "\x1b" not in line for line in lines), lines
        assert any(line.startswith("  noise      A against A 1.0 %") for line in lines)


def turn(cached: int) -> list[Turn]:
    return [Turn(prompt=200 + 50 * number, cached=cached, lost_until=cached) for number in range(2)]


def test_passes_are_read_from_their_run_directories(tmp_path: Path) -> None:
    """Requests of a pass, its step time by adding up; round 0 and the warm-up are left out."""
    run = loop(tmp_path / "run", turn(0), Law())
    for number, record in enumerate(run.records):
        record["pass"] = ("A0", "A1")[number]
    with TraceStore.open(run.ingest()) as store:
        (found,) = measured([store])
    law = Law()
    wanted = law.step_ms((0, 250), ()) + sum(law.step_ms(None, (250 + made,)) for made in range(1, 6))
    assert found == Pass(
        side="A", name="A1", step_ns=pytest.approx(wanted * 1e6, abs=10), steps=6, requests=1, failed=0, prompt_tokens=250,
        cached_tokens=0, output_tokens=6,
    )  # fmt: skip


def test_failed_passes_and_other_work_are_no_proof(tmp_path: Path) -> None:
    for number, (spoil, words) in enumerate(
        (({"status": "error"}, "1 requests failed"), ({"output_tokens": 60}, "not the same work"))
    ):
        run = loop(tmp_path / str(number), turn(0), Law())
        for side, record in zip(("A1", "B1"), run.records, strict=True):
            record["pass"] = side
        run.records[1] |= spoil
        with TraceStore.open(run.ingest()) as store, pytest.raises(NothingToAnalyze, match=words):
            measured([store])


def test_overlapping_steps_are_counted_once(tmp_path: Path) -> None:
    """Asynchronous scheduling: the next step is scheduled before the result of this one is there."""
    from ledger_run import Run

    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run")
    run.request("a", 0, queued=0, end=40, tokens=(10, 20, 30), prompt=8, **{"pass": "A1"})
    run.step(0, 10, a=(8, 0, 1)).step(5, 20, a=(1, 8, 1)).step(12, 30, a=(1, 9, 1))
    with TraceStore.open(run.ingest()) as store:
        (found,) = measured([store])
    assert found.step_ns == at(30) - at(0)


def test_the_command_says_what_it_cannot_run(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect(str(database)) as con:
        con.execute("UPDATE runs SET source = 'ingest'")
    for arguments, code, words in (
        (["prove", str(database)], 5, "read from a recording"),
        (["prove", str(database), "agents.nothing"], 2, "no finding"),
        (["prove", str(database), "--rounds", "1"], 2, "rounds"),
        (["findings", str(database)], 0, ""),
        (["findings", str(database), "--json"], 0, ""),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        shown = capsys.readouterr()
        assert (stopped.value.code or 0) == code, shown.err
        assert words in shown.err
        if "--json" in arguments:
            assert "agents.volatile-system" in [row["finding_id"] for row in json.loads(shown.out)["findings"]]
