"""Findings priced by the step ledger: what is planted is found, its gain holds the truth, and what is not planted is not found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from finding_evidence import assert_explained
from loop_run import Law, step_ms
from queue_run import Ask, Limits, recorded, simulate, total_ms

from analyzers import finding_engine, findings
from analyzers.finding import Finding, Proof, Severity
from analyzers.finding_basis import basis, gain_between
from analyzers.finding_law import base_range
from analyzers.step_law import WORK, learn
from traces.store import TraceStore

STAGGERED = tuple(Ask(at=12 * number, prompt=64 + number % 7, output=20 + number % 11) for number in range(32))
LONG = tuple(Ask(at=300 * number, prompt=2000, output=5) for number in range(6))
CROWD = tuple(Ask(prompt=90 + number, output=40 + number) for number in range(12))


def found(
    folder: Path, asks: Sequence[Ask], limits: Limits, law: Law | None = None, *, late_ms: float = 0.0, args: tuple[str, ...] = (),
    spec: str = "batch:n=4,prompt=100,rate=2.0", **facts: Any,
) -> dict[str, Finding]:  # fmt: skip
    """The findings of a simulated run by id; evidence is run, and what is written can be read again."""
    run = recorded(folder / "run", asks, limits, law or Law(), late_ms=late_ms)
    assert step_ms(run) == pytest.approx(total_ms(asks, limits, law or Law()))
    database = run.ingest()
    known = {
        "max_num_seqs": limits.seats,
        "max_num_batched_tokens": limits.budget,
        "block_size": 16,
        "max_model_len": 8192,
    }
    config = {"engine_facts": known | facts, "engine_args": list(args), "workload": {"spec": spec}}
    with duckdb.connect(str(database)) as con:
        con.execute("UPDATE runs SET engine = 'vllm', source = 'profile', config = ?", [json.dumps(config)])
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("SET VARIABLE run_id = ?", [run_id])
        findings.fill(con, run_id)
        made = {finding.finding_id: finding for finding in finding_engine.make(con, run_id)}
    with TraceStore.open(database) as store:
        for row in findings.read_findings(store).findings:
            assert_explained(
                store.connection, *(row[key] for key in ("finding_id", "evidence", "device_ns", "energy_j"))
            )
            assert made[row["finding_id"]].shown
    return {name: finding for name, finding in made.items() if finding.shown}


def saved(
    asks: Sequence[Ask], limits: Limits, better: Limits, law: Law | None = None, fewer: Sequence[Ask] | None = None
) -> float:
    law = law or Law()
    return 1 - total_ms(fewer or asks, better, law) / total_ms(asks, limits, law)


def holds(finding: Finding, truth: float) -> bool:
    assert finding.gain is not None and truth > 0.01
    assert finding.gain.of == "step_time" and finding.time_ns > 0
    return truth in finding.gain.interval


def test_requests_that_wait_for_a_seat(tmp_path: Path) -> None:
    limits = Limits(seats=4)
    finding = found(tmp_path, STAGGERED, limits, args=("max-num-seqs=4", "dtype=bfloat16"))["queue.seats"]
    wanted = int(finding.fix.split("--max-num-seqs ")[1].split(";")[0])
    assert wanted == 16 and finding.proof == Proof(engine_args=("max-num-seqs=16",), without=("max-num-seqs",))
    assert holds(finding, saved(STAGGERED, limits, replace(limits, seats=wanted)))
    assert finding.severity is Severity.CRITICAL and "4 seats are taken" in finding.cause


def test_enough_seats_are_no_finding(tmp_path: Path) -> None:
    assert "queue.seats" not in found(tmp_path, STAGGERED, Limits(seats=64))


def test_steps_that_are_all_alike_predict_nothing(tmp_path: Path) -> None:
    """Always four requests: what a step costs whatever it does cannot be told from what they cost."""
    asks = [Ask(prompt=64, output=20)] * 32
    assert "queue.seats" not in found(tmp_path, asks, Limits(seats=4))


def test_a_backlog_that_would_not_pile_up_promises_nothing(tmp_path: Path) -> None:
    """Two seats are too few now and then; with more of them nobody would decode beside more than one other."""
    asks = [Ask(at=14 * number, prompt=150, output=12) for number in range(30)]
    limits, law = Limits(seats=2, budget=2048), Law(base=0.5, decode=0.05)
    shown = found(tmp_path, asks, limits, law).get("queue.seats")
    assert shown is None or holds(shown, saved(asks, limits, replace(limits, seats=8), law))


def test_preemption_is_found_with_what_was_computed_again(tmp_path: Path) -> None:
    limits = Limits(cache=900)
    finding = found(tmp_path, CROWD, limits, args=("num-gpu-blocks-override=57",))["kv.preemption"]
    steps, _ = simulate(CROWD, limits, Law())
    again = sum(step.rows[name][0] for step in steps for name in step.resumed) - sum(
        len(step.resumed) for step in steps
    )
    assert f"computed {again:,} tokens again" in finding.cause
    need = sum(ask.prompt + ask.output for ask in CROWD)
    assert finding.proof == Proof(
        engine_args=(f"num-gpu-blocks-override={-(-need // 16) + 1}",), without=("num-gpu-blocks-override",)
    )
    assert holds(finding, saved(CROWD, limits, replace(limits, cache=10**6)))


def test_a_full_cache_without_preemption(tmp_path: Path) -> None:
    asks = [Ask(at=number, prompt=300 + number, output=4 + number % 3) for number in range(24)]
    limits = Limits(cache=1400, budget=4000)
    finding = found(tmp_path, asks, limits, Law(token=0.004))["kv.full"]
    assert holds(finding, saved(asks, limits, replace(limits, cache=10**6), Law(token=0.004)))
    assert finding.proof is None, "this run did not limit its blocks by hand"


def test_a_large_cache_is_no_finding(tmp_path: Path) -> None:
    assert not {"kv.preemption", "kv.full"} & set(found(tmp_path, CROWD, Limits()))


def test_small_chunks(tmp_path: Path) -> None:
    limits = Limits(budget=64)
    finding = found(tmp_path, LONG, limits)["prefill.small-chunks"]
    assert finding.proof == Proof(engine_args=("max-num-batched-tokens=2048",))
    assert holds(finding, saved(LONG, limits, replace(limits, budget=2048)))


def test_chunks_that_hold_the_prompt_are_no_finding(tmp_path: Path) -> None:
    assert "prefill.small-chunks" not in found(tmp_path, LONG, Limits(budget=2048))


@pytest.mark.parametrize("budget", [64, 2048])
def test_fewer_prompt_tokens(tmp_path: Path, budget: int) -> None:
    finding = found(tmp_path, LONG, Limits(budget=budget))["prefill.prompts"]
    fewer = [replace(ask, prompt=round(ask.prompt * 0.9)) for ask in LONG]
    assert holds(finding, saved(LONG, Limits(budget=budget), Limits(budget=budget), fewer=fewer))
    assert finding.proof == Proof(workload="batch:n=4,prompt=90,rate=2.0")


def test_few_requests_at_once(tmp_path: Path) -> None:
    alone = [Ask(at=200 * number, prompt=16 + number, output=30) for number in range(8)]
    finding = found(tmp_path, alone, Limits(), Law(base=5, decode=0.2))["decode.small-batch"]
    together = [Ask(at=400 * (number // 2), prompt=16 + number, output=30) for number in range(8)]
    law = Law(base=5, decode=0.2)
    assert holds(finding, 1 - total_ms(together, Limits(), law) / total_ms(alone, Limits(), law))
    assert finding.proof is None, "twice the load is other work, so that step times could not be compared"


def test_a_healthy_engine_has_none(tmp_path: Path) -> None:
    asks = [Ask(at=5 * number, prompt=50, output=30) for number in range(30)]
    assert found(tmp_path, asks, Limits(seats=64, budget=2048), Law(base=0.3, decode=0.6)) == {}


def test_a_client_that_sees_its_tokens_late(tmp_path: Path) -> None:
    finding = found(tmp_path, STAGGERED, Limits(), late_ms=80)["frontend.output"]
    assert (finding.severity, finding.gain) == (Severity.INFO, None)
    assert "80 ms" in finding.cause
    assert "frontend.output" not in found(tmp_path / "prompt", STAGGERED, Limits(), late_ms=2)


def test_nothing_from_a_ledger_that_is_withheld(tmp_path: Path) -> None:
    database = recorded(tmp_path / "run", STAGGERED, Limits(seats=4), Law()).ingest()
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute('UPDATE runs SET config = \'{"engine_facts": {"max_num_seqs": 4, "max_num_batched_tokens": 512}}\'')
        before = [finding.finding_id for finding in finding_engine.make(con, run_id)]
        con.execute(
            "INSERT INTO health (run_id, check_id, status, affects, message) VALUES (?, 'x', 'withheld', '[\"ledger_steps\"]', '')",
            [run_id],
        )
        assert "queue.seats" in before
        assert list(finding_engine.make(con, run_id)) == []


@pytest.mark.parametrize(
    "config",
    ["{}", "[]", "null", '{"engine_facts": [], "engine_args": "x", "workload": 3}', '{"engine_facts": {"max_num_seqs": true}}',
     '{"engine_facts": {"max_num_seqs": -4, "max_num_batched_tokens": "many", "block_size": 0}, "engine_args": [1]}',
     '{"workload": {"spec": ["batch"]}, "engine_args": ["=", "--"], "model_config": {"model_type": 7}}'],
)  # fmt: skip
def test_odd_facts_predict_nothing_that_needs_them(tmp_path: Path, config: str) -> None:
    database = recorded(tmp_path / "run", STAGGERED, Limits(seats=4), Law()).ingest()
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("UPDATE runs SET config = ?", [config])
        made = list(finding_engine.make(con, run_id))
        assert not {finding.finding_id for finding in made} & {"queue.seats", "prefill.small-chunks"}
        assert all(finding.proof is None for finding in made)
        assert list(finding_engine.make(con, "no such run")) == []


@pytest.mark.parametrize(("base", "decode"), [(2.0, 0.3), (0.0, 1.0), (6.0, 0.0)])
def test_a_base_is_told_where_steps_differ(base: float, decode: float) -> None:
    steps = frame([1 + number % 9 for number in range(60)], base, decode)
    low, high = base_range(steps)
    assert low <= base * 1e6 <= high and high - low < 0.3e6
    assert learn(steps) is not None


def test_a_base_is_open_where_steps_are_alike() -> None:
    low, high = base_range(frame([4] * 60, 2.0, 0.3))
    assert low <= 0.0 and high >= 3.1e6, "any base up to the whole step explains them"


def test_noise_widens_the_base() -> None:
    random = np.random.default_rng(3)
    counts = [1 + number % 9 for number in range(60)]
    exact = base_range(frame(counts, 2.0, 0.3))
    noisy = frame(counts, 2.0, 0.3).with_columns(
        step_ns=pl.col("step_ns") + pl.Series(random.normal(0, 2e5, 60).round().astype(np.int64))
    )
    low, high = base_range(noisy)
    assert low <= 2e6 <= high and high - low > exact[1] - exact[0]


def frame(decodes: Sequence[int], base: float, decode: float) -> pl.DataFrame:
    """Steps of sql/finding_steps.sql, ms."""
    rows = {name: [0.0] * len(decodes) for name in WORK} | {"decode_tokens": [float(count) for count in decodes]}
    return pl.DataFrame(rows | {"step_ns": [round(1e6 * (base + decode * count)) for count in decodes]})


@pytest.mark.parametrize(
    ("low", "value", "high"), [(0.1, float("nan"), 0.2), (0.0, 0.0, 0.1), (0.1, -0.1, 0.2), (0.1, float("inf"), 1)]
)
def test_what_is_no_gain_is_none(low: float, value: float, high: float) -> None:
    assert gain_between(low, value, high) is None


def test_a_gain_lies_in_its_interval_and_is_no_more_than_all() -> None:
    gain = gain_between(0.5, 0.4, 3.0)
    assert gain is not None and (gain.interval.low, gain.value, gain.interval.high) == (0.4, 0.4, 1.0)


def test_what_changes_nothing_is_no_proof(tmp_path: Path) -> None:
    database = recorded(tmp_path / "run", STAGGERED[:14], Limits(), Law()).ingest()
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute(
            "UPDATE runs SET config = ?",
            [json.dumps({"engine_args": ["--enforce_eager"], "workload": {"spec": "chat:turns=2"}})],
        )
        run = basis(con, run_id)
    assert run is not None
    assert run.proof(without=("disable-cuda-graph",)) is None
    assert run.proof(without=("enforce-eager",)) == Proof(without=("enforce-eager",))
    assert (run.with_option("batch", "turns", "3"), run.with_option("chat", "turns", "3")) == (None, "chat:turns=3")
    assert (run.option("chat", "turns"), run.option("chat", "users")) == (2.0, None)
