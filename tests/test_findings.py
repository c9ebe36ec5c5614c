"""Findings: what is lost by which cause, what it would gain, and that the prediction holds where the price is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from finding_evidence import assert_explained
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_run import BLOCK, WORKLOAD, Law, Turn, all_tiled, loop, loops, repaired, step_ms, tiled

from analyzers import findings, step_law
from analyzers.finding import LEAST_GAIN, Finding, Gain, Interval, Proof, Severity, severity_of
from analyzers.finding_agents import make
from analyzers.finding_agents_causes import CAUSES, Recorded, cause_of, proof_of
from analyzers.report.findings_text import findings_lines
from traces.store import TraceStore

LOST = [Turn(prompt=400 + 120 * turn, cached=0, lost_until=300 + 120 * turn if turn else 0) for turn in range(5)]


INGESTED: dict[tuple[tuple[Turn, ...], Law, int], tuple[bytes, Any]] = {}  # one ingest per loop, whatever is told of it


def of_agents(store: TraceStore) -> findings.FindingsReport:
    """The report without what other makers find in the same run."""
    report = findings.read_findings(store)
    return dataclasses.replace(
        report, findings=[row for row in report.findings if row["finding_id"].startswith("agents.")]
    )


def found(
    folder: Path, turns: list[Turn], law: Law, *, budget: int = 100_000, **how: Any
) -> tuple[list[Finding], Path, Any]:
    key = (tuple(turns), law, budget)
    if key not in INGESTED:
        run = loop(folder / "run", turns, law, budget=budget)
        INGESTED[key] = run.ingest().read_bytes(), run
    content, run = INGESTED[key]
    database = folder / "run.duckdb"
    database.write_bytes(content)
    run_id = tiled(database, run, turns, block=BLOCK, **how)
    with duckdb.connect(str(database)) as con:
        con.execute("SET VARIABLE run_id = ?", [run_id])
        findings.fill(con, run_id)
        return list(make(con, run_id)), database, run


@pytest.mark.parametrize(
    ("law", "budget"),
    [
        (Law(), 100_000), (Law(base=0.1), 100_000), (Law(token=0.001, pair=1e-4), 100_000), (Law(base=10, pair=0), 100_000),
        (Law(), 128), (Law(base=8, token=0.005), 96),
    ],
)  # fmt: skip
def test_where_the_law_is_known_the_gain_lies_in_the_interval(tmp_path: Path, law: Law, budget: int) -> None:
    (finding,), _, run = found(tmp_path, LOST, law, budget=budget)
    after = step_ms(loop(tmp_path / "after", repaired(LOST), law, budget=budget))
    gain = 1 - after / step_ms(run)
    assert gain > 0.05
    assert finding.gain is not None
    assert gain in finding.gain.interval, (gain, finding.gain)
    assert finding.gain.interval.high - finding.gain.interval.low < 0.35 * gain + 0.02, "wide enough to mean nothing"
    assert finding.gain.value == pytest.approx(gain, abs=0.05)


@pytest.mark.parametrize(("sessions", "law", "budget"), [
    (3, Law(), 100_000), (4, Law(base=8, token=0.01), 100_000), (3, Law(base=6), 256), (6, Law(base=12, token=0.004, pair=0), 100_000),
])  # fmt: skip
def test_sessions_that_share_steps_gain_what_the_interval_says(
    tmp_path: Path, sessions: int, law: Law, budget: int
) -> None:
    """Served sooner, they overlap less: what that costs was not in the law's sum, and has to be in the interval."""
    turns = [
        [Turn(prompt=t.prompt + 31 * s, cached=0, lost_until=t.lost_until, output=12) for t in LOST]
        for s in range(sessions)
    ]
    before = loops(tmp_path / "before", turns, law, budget=budget)
    database = before.ingest()
    run_id = all_tiled(database, before, turns, block=BLOCK)
    with duckdb.connect(str(database)) as con:
        (finding,) = make(con, run_id)
    after = loops(tmp_path / "after", [repaired(each) for each in turns], law, budget=budget)
    gain = 1 - step_ms(after) / step_ms(before)
    assert finding.gain is not None
    assert gain in finding.gain.interval, (gain, finding.gain)


def test_a_finding_says_what_was_lost_where_and_how_to_check_it(tmp_path: Path) -> None:
    (finding,), database, _ = found(tmp_path, LOST, Law())
    assert (finding.finding_id, finding.severity) == ("agents.volatile-system", Severity.CRITICAL)
    lost = sum(turn.lost_until for turn in LOST)
    assert finding.cause.endswith(f"{lost:,} tokens in 4 turns of 1 session; mostly from token 0 on")
    assert finding.device_ns is None and finding.share is None and finding.energy_j is None, "nothing was recorded"
    assert finding.gain is not None and finding.time_ns > 0
    assert finding.proof == Proof(workload=WORKLOAD.replace("head", "no"))
    with TraceStore.open(database) as store:
        (row,) = of_agents(store).findings
        assert (row["gain_of"], row["proved"]) == ("step_time", None)
        rows = store.query(row["evidence"])
        assert rows.height == 4 and rows["tokens"].sum() == lost
        lines = findings_lines(of_agents(store), str(database), limit=5)
    assert any("check  stepscope prove" in line for line in lines)
    assert all(len(line) <= 100 for line in lines if "stepscope prove" not in line), lines


def test_what_is_recorded_is_summed(tmp_path: Path) -> None:
    _, database, _ = found(tmp_path, LOST, Law())
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("UPDATE reuse SET device_ns = tokens * 10, energy_j = 0.5 WHERE piece = 'lost'")
        con.execute(
            "INSERT INTO devices (run_id, rank, device, window_start_ns, window_end_ns) VALUES (?, 0, 0, 0, 100000)",
            [run_id],
        )
        (finding,) = make(con, run_id)
        assert_explained(
            con, "", finding.evidence.replace("$run_id", f"'{run_id}'"), finding.device_ns, finding.energy_j
        )
    lost = sum(turn.lost_until for turn in LOST)
    assert (finding.device_ns, finding.time_ns, finding.energy_j) == (lost * 10, lost * 10, 2.0)
    assert finding.share == pytest.approx(lost * 10 / 100_000)


def test_withheld_time_is_not_summed_and_the_ledgers_prediction_stays(tmp_path: Path) -> None:
    _, database, _ = found(tmp_path, LOST, Law())
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        con.execute("UPDATE reuse SET device_ns = tokens, energy_j = 0.5")
        con.execute(
            "INSERT INTO health (run_id, check_id, status, affects, message) VALUES (?, 'x', 'withheld', '[\"steps.busy_ns\"]', 'm')",
            [run_id],
        )
        (finding,) = make(con, run_id)
    assert (finding.device_ns, finding.energy_j, finding.share) == (None, None, None)
    assert finding.gain is not None and finding.time_ns > 0


def test_a_healthy_loop_has_no_findings(tmp_path: Path) -> None:
    healthy = repaired(LOST)
    made, database, _ = found(tmp_path, healthy, Law(), cause="block_remainder", role=None, detail=None)
    assert made == []
    with TraceStore.open(database) as store:
        report = of_agents(store)
        lines = findings_lines(report, "r", limit=5)
        told = findings_lines(dataclasses.replace(report, not_looked_at=[]), "r", limit=5)
    assert lines[0].startswith("no findings") and "but not all could be looked at" in " ".join(lines)
    assert "nothing that is known of this run costs it enough" in " ".join(told), "where nothing was left out"


def test_block_remainders_are_nobodys_finding(tmp_path: Path) -> None:
    made, _, _ = found(tmp_path, LOST, Law(), cause="block_remainder", role=None, detail="blocks of 16 tokens")
    assert made == []


def test_little_lost_is_not_shown(tmp_path: Path) -> None:
    little = [Turn(prompt=turn.prompt, cached=0, lost_until=12 if number else 0) for number, turn in enumerate(LOST)]
    made, database, _ = found(tmp_path, little, Law())
    assert [finding.shown for finding in made] == [False], "up to a block may stay lost, so nothing may be gained"
    with TraceStore.open(database) as store:
        assert of_agents(store).findings == []


def test_compaction_is_only_told(tmp_path: Path) -> None:
    how = {"role": "user", "detail": "compaction: fewer messages than the turn before"}
    (finding,), database, _ = found(tmp_path, LOST, Law(), **how)
    assert (finding.finding_id, finding.severity, finding.gain) == ("agents.compaction", Severity.INFO, None)
    with TraceStore.open(database) as store:
        assert [row["finding_id"] for row in of_agents(store).findings] == ["agents.compaction"]


def test_too_few_steps_or_no_ledger_predict_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, [Turn(prompt=64, cached=0, lost_until=48, output=2)] * 2, Law())[0] == []


@pytest.mark.parametrize(
    ("cause", "role", "detail", "name"),
    [
        ("prefix_changed", "system", "volatile text in the system prompt", "volatile-system"),
        ("prefix_changed", "system", "differs from earlier sessions in the system prompt", "volatile-system"),
        ("prefix_changed", "tools", "tools in another order", "tools-reordered"),
        ("prefix_changed", "tools", "tools changed", "tools-changed"),
        ("prefix_changed", "observation", "observation message was edited", "result-edited"),
        ("prefix_changed", "user", "user message was edited", "message-edited"),
        ("prefix_changed", "document", "document message was edited", "documents-first"),
        ("prefix_changed", "assistant", "the model's earlier answer comes back shorter, as when reasoning is dropped", "reasoning-dropped"),
        ("prefix_changed", "assistant", "the model's answer comes back as other tokens", "answer-changed"),
        ("prefix_changed", "user", "compaction: fewer messages than the turn before", "compaction"),
        ("prefix_changed", None, None, "prefix-differs"),
        ("evicted", None, None, "evicted"),
        ("caching_off", None, "switched off", "caching-off"),
        ("other_replica", None, None, "other-replica"),
        ("block_remainder", None, None, None),
        (None, None, "the block size is not known", None),
    ],
)  # fmt: skip
def test_every_cause_of_loss_has_its_finding(
    cause: str | None, role: str | None, detail: str | None, name: str | None
) -> None:
    known = cause_of(cause, role, detail)
    assert (known.name if known else None) == name


SPEC = "agent:documents_at=head,edit_at=2,sessions=4,shuffle_tools=yes,timestamp=head"


@pytest.mark.parametrize(
    ("name", "args", "change"),
    [
        ("volatile-system", (), Proof(workload=SPEC.replace("timestamp=head", "timestamp=no"))),
        ("tools-reordered", (), Proof(workload=SPEC.replace("=yes", "=no"))),
        ("result-edited", (), Proof(workload=SPEC.replace("edit_at=2", "edit_at=0"))),
        ("documents-first", (), Proof(workload=SPEC.replace("at=head", "at=tail"))),
        ("caching-off", ("no-enable-prefix-caching",), Proof(without=("no-enable-prefix-caching",))),
        ("caching-off", ("--no_enable_prefix_caching", "x=1"), Proof(without=("no-enable-prefix-caching",))),
        ("caching-off", ("block-size=32",), None),  # the model or the engine switched it off
        (
            "evicted", ("num_gpu_blocks_override=40",),
            Proof(without=("num-gpu-blocks-override",), engine_args=("num-gpu-blocks-override=64",)),
        ),
        ("evicted", (), None),
        ("reasoning-dropped", (), None),
        ("compaction", (), None),
    ],
)  # fmt: skip
def test_a_proof_takes_the_cause_out_of_the_run(name: str, args: tuple[str, ...], change: Proof | None) -> None:
    recorded = Recorded(workload=SPEC, engine_args=args, block_tokens=16, capacity_tokens=640)
    assert proof_of(CAUSES[name], recorded, needed_tokens=1000) == change


def test_what_was_not_planted_cannot_be_taken_out() -> None:
    for spec in (
        "agent:timestamp=no",
        "batch:n=3",
        "agent",
        "replay:path=a%2Ctimestamp=head",
        "agent:timestamp=head,timestamp=head",
    ):
        recorded = Recorded(workload=spec, engine_args=(), block_tokens=16, capacity_tokens=None)
        assert proof_of(CAUSES["volatile-system"], recorded, 0) is None, spec
    nothing = Recorded(workload=SPEC, engine_args=None, block_tokens=16, capacity_tokens=None)
    assert proof_of(CAUSES["volatile-system"], nothing, 0) is None


def test_causes_that_one_change_ends_have_the_gain_of_the_change() -> None:
    def finding(name: str, value: float, proof: Proof | None, of: str = "step_time") -> Finding:
        gain = Gain(value=value, interval=Interval(low=value / 2, high=value * 1.5), of=of)
        return Finding(
            finding_id=name, severity=severity_of(gain), title="t", cause="c", device_ns=None, energy_j=None, share=None, time_ns=1,
            gain=gain, evidence="SELECT 1", fix="f", proof=proof,
        )  # fmt: skip

    blocks, seats = Proof(engine_args=("num-gpu-blocks-override=99",)), Proof(engine_args=("max-num-seqs=8",))
    items = [
        finding("evicted", 0.4, blocks), finding("full", 0.1, dataclasses.replace(blocks)), finding("seats", 0.2, seats),
        finding("busy", 0.2, seats, of="busy"), finding("alone", 0.3, None), finding("apart", 0.2, None),
    ]  # fmt: skip
    found = {item.finding_id: item for item in findings.of_one_change(items)}
    for name in ("evicted", "full"):
        gain = found[name].gain
        assert gain is not None
        assert (gain.value, gain.interval.low, gain.interval.high) == pytest.approx((0.45, 0.2, 0.75))
        assert found[name].severity is Severity.CRITICAL
    assert "which ends full too" in found["evicted"].cause and "which ends evicted too" in found["full"].cause
    assert [found[name] for name in ("seats", "busy", "alone", "apart")] == items[2:], (
        "shares of different things, or no change"
    )


def test_only_gains_that_leave_zero_out_are_shown_and_ranked_by_time() -> None:
    def finding(name: str, time_ns: int, gain: Gain | None, severity: Severity = Severity.INFO) -> Finding:
        return Finding(
            finding_id=name, severity=severity, title="t", cause="c", device_ns=None, energy_j=None, share=None, time_ns=time_ns,
            gain=gain, evidence="SELECT 1", fix="f",
        )  # fmt: skip

    sure, bigger = (Gain(value=value, interval=Interval(low=value / 2, high=2 * value)) for value in (0.1, 0.3))
    doubtful = Gain(value=0.1, interval=Interval(low=-0.01, high=0.3))
    small = Gain(value=LEAST_GAIN / 2, interval=Interval(low=LEAST_GAIN / 3, high=LEAST_GAIN))
    items = [
        finding("told", 99, None), finding("sure", 5, sure), finding("doubt", 50, doubtful), finding("small", 40, small),
        finding("big", 20, bigger), finding("quiet", 60, None, Severity.WARNING),
    ]  # fmt: skip
    assert [item.finding_id for item in findings.ranked(items)] == ["big", "sure", "told"]
    assert [str(severity_of(gain)) for gain in (small, sure, bigger)] == ["info", "warning", "critical"]


def test_hostile_words_reach_neither_statement_nor_terminal(tmp_path: Path) -> None:
    nasty = "x' OR 1=1; DROP TABLE runs; --\x1b[31m"
    made, database, _ = found(tmp_path, LOST, Law(), role="user'\x1b]0;t\x07", detail=nasty)
    assert [finding.finding_id for finding in made] == ["agents.prefix-differs"]
    with TraceStore.open(database) as store:
        report = of_agents(store)
        assert store.query(report.findings[0]["evidence"]).height == 4
        assert "\x1b" not in "".join(findings_lines(report, "r\x1b[1m", limit=5))
    with duckdb.connect(str(database)) as con:
        con.execute("UPDATE runs SET run_id = 'a''b'"), con.execute("UPDATE reuse SET run_id = 'a''b'")
        row = made[0].row("a'b", 1)
        assert len(con.execute(row[-3]).fetchall()) == 4


def test_rows_of_any_kind_are_shown(tmp_path: Path) -> None:
    """A database may come from anywhere: no row of it is a traceback."""
    _, database, _ = found(tmp_path, LOST, Law())
    with duckdb.connect(str(database)) as con:
        con.execute("DELETE FROM findings")
        con.execute(
            "INSERT INTO findings (run_id, finding_id, proof, predicted_gain) SELECT run_id, 'x', '3', 'nan'::DOUBLE FROM runs"
        )
        con.execute(
            "INSERT INTO findings (run_id, finding_id, gain_of, energy_j) SELECT run_id, '\x1b[2J', 'y', 'inf'::DOUBLE FROM runs"
        )
        con.execute("INSERT INTO proofs (run_id, finding_id) SELECT run_id, 'x' FROM runs")
    with TraceStore.open(database) as store:
        report = findings.read_findings(store)
        assert "\x1b" not in "".join(findings_lines(report, "r", limit=9))
        assert len(json.dumps(report.to_dict())) > 100


@pytest.mark.parametrize("config", [
    "[]", "null", "3", '{"engine_facts": 3, "workload": [], "engine_args": "x"}', '{"engine_args": [1]}',
    '{"engine_facts": {"block_size": true, "num_blocks": -1}}', '{"workload": {"spec": {}}, "engine_args": null}',
])  # fmt: skip
def test_any_config_is_survived(tmp_path: Path, config: str) -> None:
    _, database, _ = found(tmp_path, LOST, Law())
    with duckdb.connect(str(database)) as con:
        con.execute("UPDATE runs SET config = ?", [config])
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        (finding,) = make(con, run_id)
    assert finding.proof is None


@given(st.integers(0, 2**32 - 1), st.integers(6, 40))
@settings(max_examples=40, deadline=None)
def test_no_price_is_negative_and_none_could_be_better(seed: int, rows: int) -> None:
    """The conditions of an optimum: no slope where a price is above zero, none downwards where it is zero."""
    random = np.random.default_rng(seed)
    x = random.random((rows, 5)) * (random.random(5) > 0.2)
    y = x @ random.normal(size=5) + random.normal(size=rows)
    (prices,) = step_law.solved((x.T @ x)[None], (x.T @ y)[None])
    slope = x.T @ (x @ prices - y)
    assert (prices >= 0).all()
    assert np.all(slope >= -1e-6)
    assert np.all(np.abs(slope[prices > 1e-9]) < 1e-6)


def test_many_steps_are_drawn_in_runs() -> None:
    import polars as pl

    count = 5 * step_law.MOST_BLOCKS + 3
    tokens = np.arange(count) % 7
    steps = pl.DataFrame({
        "step_ns": 1000 + 10 * tokens, "prefill_tokens": tokens, "prefill_pairs": np.zeros(count),
        "decode_tokens": np.zeros(count), "decode_context": np.zeros(count),
    })  # fmt: skip
    law = step_law.learn(steps)
    assert law is not None
    assert law.prices == pytest.approx([1000, 10, 0, 0, 0], abs=1e-6)
    assert law.draws.shape == (step_law.DRAWS, 5)
    assert step_law.learn(steps.head(step_law.LEAST_STEPS - 1)) is None


def test_fill_replaces_what_was_there(tmp_path: Path) -> None:
    _, database, _ = found(tmp_path, LOST, Law())
    with duckdb.connect(str(database)) as con:
        ((run_id,),) = con.execute("SELECT run_id FROM runs").fetchall()
        findings.fill(con, run_id)
        findings.fill(con, run_id)
        (proof,) = [
            row[0] for row in con.execute("SELECT proof FROM findings WHERE finding_id LIKE 'agents.%'").fetchall()
        ]
        assert json.loads(proof)["workload"].endswith("timestamp=no,turns=5")
