"""`energy` as a shell sees it: tables, JSON, estimates, and what it says where something cannot be known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from conftest import DATA
from energy_plant import LOW, RUN, T0, Plant, S, counter, ns
from test_commands import served_run

import cli
from analyzers import energy
from analyzers.energy_remedies import lowered, study
from analyzers.pipeline import analyze_run
from traces.ingest import IngestOptions, ingest_once

Run = Callable[..., tuple[int, str, str]]
ESCAPE = "\x1b[31mred\x07"
LONG = "x" * 300


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(item) for item in arguments])
        found = capsys.readouterr()
        return int(stopped.value.code or 0), found.out, found.err

    return invoke


def power_at(t: float) -> float:
    return 35.0 if t < 5 else 300.0 if (t - 5) % 20 < 8 else 105.0


def sensors_at(t: float) -> dict[str, Any]:
    busy = power_at(t) == 300
    return {**LOW, **({"sm_active": 0.9} if busy else {}), "resident": t >= 5, "energy_j": counter(power_at, t)}


def served(path: Path, *, devices: int = 1, name: str = "NVIDIA L40S") -> Path:
    """65 s of samples, and a window of 30 s with two steps and two requests on device 0."""
    plant = Plant(path)
    for device in range(devices):
        plant.sampled(65, sensors_at, device=device).row("sensors", rank=0, device=device, source="nvml", name=name)
    plant.window(5, 35, busy_ns=8 * S, idle_ns=22 * S).gap(13, 35, "no_work")
    for number, kind, start, prefill in ((0, "prefill", 5.0, 1.0), (1, "decode", 9.0, 0.0)):
        plant.kernel(start, start + 4, number, prefill=prefill)
        tokens = {"prefill_tokens": 200 if prefill else 0, "decode_tokens": 0 if prefill else 40, "accepted_tokens": 20}
        plant.step(number, kind, start, start + 4, **tokens)
        for request, part in ((ESCAPE, 1.0), (LONG, 3.0)):
            plant.share(number, request, part, phase=kind)
    for request in (ESCAPE, LONG):
        tokens = {"prompt_tokens": 100, "output_tokens": 20, "prefill_device_ns": S, "decode_device_ns": S}
        plant.request(request, 5, 20, session_id=ESCAPE + LONG, **tokens)
    energy.fill(plant.con, RUN)
    plant.con.close()
    return path


def as_json(run: Run, *arguments: object) -> dict[str, Any]:
    code, out, _ = run("energy", *arguments, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_table(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run.duckdb", devices=2, name=ESCAPE + LONG)
    for options in ([], ["--price", 0.31], ["--min-duration", 10, "--top", 1, "--assume-resident", "--baseline-w", 20]):
        code, out, err = run("energy", path, *options)
        assert (code, err) == (0, "")
        assert max(len(line) for line in out.splitlines()) <= 100
        assert "\x1b" not in out and "\x07" not in out
        for words in ("execution-idle", "no_work", "study: Azure Code", "76.0 %", "65.0 %", "They hold for that only",
                      "outside the recorded window", "An estimate", "per million"):  # fmt: skip
            assert words in out
    assert "cost" not in run("energy", path)[1]


def test_parts_of_the_json_sum_to_the_whole(run: Run, tmp_path: Path) -> None:
    found = as_json(run, served(tmp_path / "run.duckdb"), "--price", "0.36", "--min-duration", "12.5")
    whole = 24 * 300 + 36 * 105 + 5 * 35
    assert found["energy_j"] == pytest.approx(whole, rel=1e-9)
    assert sum(row["energy_j"] for row in found["parts"]) == pytest.approx(whole, rel=1e-9)
    assert sum(row["cost"] for row in found["parts"]) == pytest.approx(whole / 3.6e6 * 0.36, rel=1e-9)
    for duration in (0, 5, 12.5):
        rows = [row for row in found["states"] if row["min_duration_s"] == duration]
        assert sum(row["energy_j"] for row in rows) == pytest.approx(whole, rel=1e-9)
        assert sum(row["time_ns"] for row in rows) == 65 * S
    idle = {row["min_duration_s"]: row for row in found["execution_idle"]}
    assert [(idle[key]["n"], idle[key]["p50_s"], idle[key]["time_ns"]) for key in (0, 5, 12.5)] == [
        (3, 12, 36 * S), (3, 12, 36 * S), (0, None, 0),
    ]  # fmt: skip
    assert idle[5]["time_share"] == 36 / 60
    assert idle[5]["energy_share"] == pytest.approx(3780 / (3780 + 7200))
    work = {row["part"]: row["energy_j"] for row in found["parts"] if row["part"] != "idle"}
    assert (work["prefill"], work["decode"]) == (pytest.approx(1200), pytest.approx(1200))
    kinds = {row["kind"]: row["energy_j"] for row in found["kinds"]}
    assert sum(kinds.values()) == pytest.approx(found["requests"]["energy_j"]) == pytest.approx(2400)
    assert [row["energy_j"] for row in found["requests"]["top"]] == pytest.approx([1800, 600])
    (session,) = found["sessions"]
    assert (session["requests"], session["energy_j"]) == (2, pytest.approx(2400))
    tokens = {(row["what"], row["of"]): row["j_per_million"] for row in found["tokens"]}
    assert tokens["prefill", "prompt tokens computed"] == pytest.approx(1200 / 200 * 1e6)
    assert tokens["decode", "output tokens"] == pytest.approx(1200 / 40 * 1e6)
    assert tokens["in-execution", "output tokens served"] == pytest.approx(10980 / 40 * 1e6)
    (window,) = found["windows"]
    assert window["kernel_idle_share"] == pytest.approx(22 / 30)
    assert window["execution_idle_share"] == window["execution_idle_share_5s"] == pytest.approx(14 / 30)


def test_the_two_remedies(run: Run, tmp_path: Path) -> None:
    found = as_json(run, served(tmp_path / "run.duckdb", devices=2))
    sm_only, both = found["downclock"]
    # three intervals of 12 s on either device, 9 s of each at low clocks
    assert sm_only["time_ns"] == both["time_ns"] == 2 * 3 * 9 * S
    assert sm_only["saved_j"] == pytest.approx(2 * 3 * 9 * 105 * (1 - 61 / 105))
    assert both["saved_j"] == pytest.approx(2 * 3 * 9 * 105 * (1 - 35 / 105))
    packed = found["packing"]
    assert (packed["devices"], packed["peak_devices"], packed["baseline_source"]) == (2, 2, "deep idle seconds")
    assert packed["mean_devices"] == pytest.approx((24 * 2 + 36 * 1) / 60)
    assert packed["saved_low_j"] == 0
    assert packed["saved_high_j"] == pytest.approx(36 * (105 - 35))
    assert as_json(run, tmp_path / "run.duckdb", "--baseline-w", 5)["packing"]["saved_high_j"] == pytest.approx(3600)


def test_one_copy_of_the_model_cannot_be_packed(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run.duckdb", devices=2)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE runs SET config = ?", [json.dumps({"engine_facts": {"tensor_parallel_size": 2}})])
    assert "one copy of the model" in as_json(run, path)["packing"]["why"]
    with duckdb.connect(str(path)) as con:
        facts = {"tensor_parallel_size": -(10**30), "pipeline_parallel_size": ["two"]}
        con.execute("UPDATE runs SET config = ?", [json.dumps({"engine_facts": facts})])
    assert as_json(run, path)["packing"]["why"] is None


def low_clocks(*spans: tuple[int, int]) -> list[tuple[int, int]]:
    found = pl.DataFrame(spans, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    start, end = lowered(found, 3, 5)
    return list(zip(start.tolist(), end.tolist(), strict=True))


def test_clocks_fall_after_three_seconds_and_not_within_five_of_the_last_rise() -> None:
    assert low_clocks() == []
    assert low_clocks((0, 3)) == []
    assert low_clocks((0, 10)) == [(3, 10)]
    assert low_clocks((0, 10), (11, 20)) == [(3, 10), (15, 20)]  # 11 + 3 is within 5 of the rise at 10
    assert low_clocks((0, 10), (11, 15), (16, 30)) == [(3, 10), (19, 30)]


def test_no_sensors_at_all(run: Run, tmp_path: Path) -> None:
    plant = Plant(tmp_path / "run.duckdb").window(0, 10, busy_ns=4 * S, idle_ns=6 * S)
    plant.con.close()
    code, out, _ = run("energy", tmp_path / "run.duckdb")
    assert code == 0
    assert "60.0 %" in out and "no sensor samples" in out and "nvidia-smi" in out
    found = as_json(run, tmp_path / "run.duckdb")
    assert found["energy_j"] is None and found["parts"] == [] and set(found["withheld"]) == {"energy", "states"}


def test_nothing_to_say(run: Run, tmp_path: Path) -> None:
    Plant(tmp_path / "run.duckdb").con.close()
    code, out, err = run("energy", tmp_path / "run.duckdb")
    assert (code, out) == (5, "") and err.startswith("error: ") and "hint: " in err


def test_a_cpu_has_energy_but_no_states(run: Run, tmp_path: Path) -> None:
    plant = Plant(tmp_path / "run.duckdb").sampled(10, lambda t: {"cpu_util": 0.5, "energy_j": 20 * t})
    plant.window(2, 8, busy_ns=2 * S, idle_ns=4 * S).kernel(2, 4, 1).step(1, "decode", 2, 4).gap(4, 8, "no_work")
    plant.con.close()
    found = as_json(run, tmp_path / "run.duckdb")
    assert [
        (row["state"], row["time_ns"]) for row in found["states"] if row["time_ns"] and not row["min_duration_s"]
    ] == [("unknown", 10 * S)]
    assert found["execution_idle"] == [] and "states" in found["withheld"]
    assert {row["part"]: row["energy_j"] for row in found["parts"]} == pytest.approx(
        {"decode": 40, "idle": 80, "outside": 80}
    )
    assert found["windows"][0]["execution_idle_share"] is None and found["windows"][0]["kernel_idle_share"] == 4 / 6
    code, out, _ = run("energy", tmp_path / "run.duckdb")
    assert code == 0 and "a CPU has no such signals" in " ".join(out.split()) and "remedy: lower" not in out


def test_residence_that_nobody_states_has_to_be_said(run: Run, tmp_path: Path) -> None:
    plant = Plant(tmp_path / "run.duckdb").sampled(20, lambda t: {**LOW, "power_w": 50.0})
    plant.con.close()
    assert "--assume-resident" in as_json(run, tmp_path / "run.duckdb")["withheld"]["states"]
    found = as_json(run, tmp_path / "run.duckdb", "--assume-resident")
    assert found["withheld"].keys() == {"steps"} and found["devices"][0]["residence"] == "assumed"
    assert found["execution_idle"][0]["time_share"] == 1
    with duckdb.connect(str(tmp_path / "run.duckdb")) as con:  # the engine's own work tells as well
        con.execute("INSERT INTO devices (run_id, rank, device, window_start_ns, window_end_ns) VALUES ('r', 0, 0, ?, ?)",
                    [ns(5), ns(10)])  # fmt: skip
        con.execute(
            "INSERT INTO ledger_steps (run_id, sched_start_ns, result_end_ns) VALUES ('r', ?, ?)", [ns(2), ns(9)]
        )
    found = as_json(run, tmp_path / "run.duckdb")
    assert found["devices"][0]["residence"] == "timeline"
    assert found["execution_idle"][0]["time_ns"] == 8 * S  # from the first step to the end of the window


@pytest.mark.parametrize(
    ("busy", "kernel_busy_s", "words"),
    [(0.9, 1, "less than a second"), (0.01, 9, "too few or too small"), (0.9, 10, "Here they agree")],
)
def test_why_the_two_idle_figures_differ(run: Run, tmp_path: Path, busy: float, kernel_busy_s: int, words: str) -> None:
    plant = Plant(tmp_path / "run.duckdb").sampled(10, lambda t: {"sm_active": busy, "resident": True})
    plant.window(0, 10, busy_ns=kernel_busy_s * S, idle_ns=(10 - kernel_busy_s) * S).con.close()
    assert words in " ".join(run("energy", tmp_path / "run.duckdb")[1].split())


def test_idle_by_kernels_that_health_withholds(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run.duckdb")
    with duckdb.connect(str(path)) as con:
        con.execute("INSERT INTO health (run_id, check_id, status, affects, message) VALUES "
                    "('r', 'graph_kernels', 'withheld', '[\"devices.idle_ns\"]', 'most launches have no kernels')")  # fmt: skip
    assert as_json(run, path)["windows"][0]["kernel_idle_share"] is None
    out = run("energy", path)[1]
    assert "withheld" in out and "most launches have no kernels" in out and "not to be divided" in out
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE health SET affects = '[\"steps.busy_ns\"]'")
    found = as_json(run, path)
    assert found["kinds"] == [] and found["requests"] is None and "energy of steps and phases" in found["withheld"]
    assert {row["part"] for row in found["parts"]} == {"doubtful", "outside"}


def test_telemetry_beside_a_real_ingest(run: Run, tmp_path: Path) -> None:
    """A run directory through ingest and analyze, with samples around its window: kernels, steps, requests, window agree."""
    target = tmp_path / "run.duckdb"
    served_run(tmp_path / "run")
    ingest_once([str(tmp_path / "run")], target, IngestOptions())
    with duckdb.connect(str(target)) as con:
        ((run_id, start, end),) = con.execute("SELECT run_id, window_start_ns, window_end_ns FROM runs").fetchall()
        step = (end - start) // 2000
        con.execute(
            "INSERT INTO telemetry (run_id, rank, device, ts_ns, energy_j) SELECT ?, 0, 0, ? + i * ?, i * 1e-6 FROM range(0, 2101) t(i)",
            [run_id, start - 50 * step, step],
        )
    analyze_run(str(target))
    found = as_json(run, target)
    assert sum(row["energy_j"] for row in found["parts"]) == pytest.approx(2100 * 1e-6)
    assert not [row for row in found["parts"] if row["part"] in ("rest", "unattributed")]
    with duckdb.connect(str(target), read_only=True) as con:
        sums = [
            con.execute(f"SELECT sum(energy_j) FROM {name}").fetchall()[0][0]
            for name in ("steps", "requests", "step_requests")
        ]
        ((busy,),) = con.execute("SELECT busy_ns FROM devices").fetchall()
    assert sums == pytest.approx([busy / step * 1e-6] * 3)


@pytest.mark.parametrize(
    "rows",
    [
        [{"ts_ns": -(2**63)}, {"ts_ns": 2**63 - 1}],
        [{"ts_ns": T0, "power_w": 1e308, "sm_active": 1e308}, {"ts_ns": T0 + S, "power_w": 1e308, "energy_j": 1e308}],
        [{"ts_ns": T0}] * 5,
        [{"ts_ns": T0 + i * 86_400 * S, "power_w": 100.0, "energy_j": float(i)} for i in range(5)],
        [{"ts_ns": T0 + 10 * S - i * S, "power_w": 100.0, "sm_active": -0.0} for i in range(10)],
        [{"ts_ns": T0}],
    ],
)
def test_hostile_samples(run: Run, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    plant = Plant(tmp_path / "run.duckdb").samples(rows, rank=None, device=None).window(0, 1)
    plant.row("sensors", source=ESCAPE, name=LONG, power_period_ns=-5)
    energy.fill(plant.con, RUN)
    plant.con.close()
    code, out, _ = run("energy", tmp_path / "run.duckdb", "--price", "1e-3")
    assert code == 0 and not re.search(r"\bnan\b", out) and "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= 100
    assert "NaN" not in json.dumps(as_json(run, tmp_path / "run.duckdb"))


def test_usage(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run.duckdb")
    for wrong in (
        ["--price", "0"],
        ["--price", "cheap"],
        ["--min-duration", "-1"],
        ["--top", "0"],
        ["--baseline-w", "nan"],
        ["--price", "inf"],
        ["--min-duration", "nan"],
    ):
        assert run("energy", path, *wrong)[0] == 2


def test_the_printed_study_is_the_study() -> None:
    source = DATA / "papers" / "execution_idle.json"
    if not source.exists():
        pytest.skip("the study's extract is not here")
    paper, ours = json.loads(source.read_text()), study()
    cluster = paper["cluster_results"]
    assert [ours["cluster"][key] * 100 for key in ("time_share", "energy_share")] == pytest.approx(
        [cluster["in_execution"]["time_pct"], cluster["in_execution"]["energy_pct"]]
    )
    assert [ours["cluster"][f"interval_{key}_s"] for key in ("p50", "p90", "p99")] == [
        cluster["intervals"][f"{key}_s"] for key in ("p50", "p90", "p99")
    ]
    assert ours["cluster"]["intervals"] == cluster["intervals"]["count"]
    rows = {
        row["name"]: [round(row["time_share"] * 100), round(row["energy_share"] * 100)]
        for row in ours["replays"]["rows"]
    }
    assert rows == paper["replay"]["results_time_energy_pct"]
    down, clocks = ours["downclock"], paper["mitigation"]["downscale"]
    assert {key: down[f"{key}_w"] for key in ("default", "sm_only")} | {"sm_mem": down["sm_and_memory_w"]} == clocks[
        "exec_idle_power_W"
    ]
    assert {key: down[f"p95_{key}_s"] for key in ("default", "sm_only")} | {
        "sm_mem": down["p95_sm_and_memory_s"]
    } == clocks["p95_s"]
    assert (down["after_s"], down["cooldown_s"]) == (clocks["X_s"], clocks["Y_s"])
