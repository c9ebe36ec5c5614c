"""What could not be looked for is said, with the reason and what mends it: no finding is no all-clear."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_finding_makers_recorded import H100, MS, Recorded, withhold
from test_roofline import GPU, TRACES

from analyzers import findings
from analyzers.findings import FindingsReport, read_findings
from analyzers.presets import model_config
from analyzers.report.findings_text import findings_lines
from analyzers.report.page import page
from analyzers.report.page_verdict import gain_words
from analyzers.report_model import read_report
from analyzers.step_law import LEAST_STEPS
from cli import Composition
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore, frame


def report_of(run: Recorded, folder: Path, **device: object) -> FindingsReport:
    """Closes the window, and reads the planted run as `findings` would."""
    run.found(device=H100 | device)
    path = folder / "run.duckdb"
    run.con.execute(f"ATTACH '{path}' AS kept")
    run.con.execute("COPY FROM DATABASE memory TO kept")
    run.con.execute("DETACH kept")
    with TraceStore.open(path) as store:
        return read_findings(store)


def told(report: FindingsReport) -> dict[str, str]:
    """Why and what mends it, by the first id."""
    return {item.findings[0]: f"{item.causes}; {item.why}; {item.mend}" for item in report.not_looked_at}


def ledger(run: Recorded, steps: int = LEAST_STEPS) -> Recorded:
    """A request that decodes for `steps` steps of the ledger, all alike, and a sensor."""
    run.row("requests", request_id="q", arrival_ns=0, scheduled_ns=1, prompt_tokens=4, output_tokens=steps, status="ok")
    for seq in range(steps):
        at = seq * MS
        run.row(
            "ledger_steps", pid=1, seq=seq, sched_start_ns=at, sched_end_ns=at, result_start_ns=at + MS, result_end_ns=at + MS,
            total_tokens=1, running=1, waiting=0, kv_usage=0.1,
        )  # fmt: skip
        run.row(
            "ledger_rows", pid=1, seq=seq, engine_request_id="q", new_tokens=1, computed_before=4 + seq, prompt_tokens=4,
            output_before=1 + seq, accepted_tokens=1,
        )  # fmt: skip
    return run.row("telemetry", rank=0, device=0, ts_ns=0, power_w=100.0)  # type: ignore[return-value]


def costed(**config: object) -> Recorded:
    run = ledger(Recorded(**config)).step(100, graph_mode="full")
    return run.kernel(100, "gemm", flops=1.0, bytes=1.0, roof_fraction=0.9, bound="compute", step_id=0)


def test_a_run_of_which_all_is_known_leaves_nothing_out(tmp_path: Path) -> None:
    report = report_of(costed(model_config=dict(model_config("qwen3-8b"))), tmp_path)
    assert report.not_looked_at == []
    assert "not looked at" not in "\n".join(findings_lines(report, "run", limit=9))


def test_without_a_model_the_command_that_names_it_is_given(tmp_path: Path) -> None:
    run = costed().kernel(900, "moe", step_id=0)
    report = report_of(run, tmp_path)
    words = told(report)["kernels.*"]
    assert words.startswith("in 90% of the busy time:") and "the model is not known" in words
    assert "llama-3.1-8b" in words and words.endswith("stepscope analyze RUN --model-config MODEL")
    lines = "\n".join(findings_lines(report, "my run", limit=9))
    assert "but not all could be looked at" in " ".join(lines.split())
    assert "stepscope analyze 'my run' --model-config MODEL" in lines
    assert json.loads(json.dumps(report.to_dict()))["not_looked_at"][0]["findings"][0] == "kernels.*"


def test_with_costs_from_operands_decode_still_asks_for_the_model(tmp_path: Path) -> None:
    assert set(told(report_of(costed(), tmp_path))) == {"decode.fp8-weights"}, "small batches are told by the ledger"


def test_a_model_that_explains_little_of_the_time(tmp_path: Path) -> None:
    run = costed(model_config=dict(model_config("qwen3-8b"))).kernel(900, "moe", step_id=0)
    assert told(report_of(run, tmp_path))["kernels.*"].endswith("stepscope analyze RUN --capture DIR")


def test_a_device_that_is_not_known(tmp_path: Path) -> None:
    report = report_of(costed(model_config=dict(model_config("qwen3-8b"))), tmp_path, name=None, peak_source=None)
    assert told(report)["kernels.*"].endswith("stepscope analyze RUN --gpu NAME")


@pytest.mark.parametrize(("name", "group"), [
    ("gaps", "host.*"), ("devices.idle_ns", "host.*"), ("steps.kind", "decode.fp8-weights"),
    ("steps", "decode.fp8-weights"),
    ("kernels.flops", "kernels.*"), ("ledger_steps", "queue.seats"), ("telemetry", "energy.execution-idle"),
])  # fmt: skip
def test_what_health_withholds_is_the_reason(name: str, group: str, tmp_path: Path) -> None:
    run = withhold(costed(model_config=dict(model_config("qwen3-8b"))), name)
    assert "planted" in told(report_of(run, tmp_path))[group]


def test_a_trace_alone_has_neither_ledger_nor_sensors(tmp_path: Path) -> None:
    run = Recorded().step(100, graph_mode="full").kernel(100, "gemm", flops=1.0, bytes=1.0, step_id=0)
    words = told(report_of(run, tmp_path))
    assert "stepscope profile" in words["queue.seats"] and "no sensor" in words["energy.execution-idle"]


def test_a_ledger_of_a_few_steps_tells_nothing(tmp_path: Path) -> None:
    run = ledger(Recorded(), 3).step(100, graph_mode="full").kernel(100, "gemm", flops=1.0, bytes=1.0, step_id=0)
    assert "3 steps of one pass: too few" in told(report_of(run, tmp_path))["queue.seats"]


def test_on_a_processor_the_remedy_is_to_measure_it(tmp_path: Path) -> None:
    """`--gpu` names no CPU; and what the model could not be asked for want of peaks is not said twice."""
    run = costed(model_config=dict(model_config("qwen3-8b")))
    run.con.execute("UPDATE runs SET device_kind = 'cpu'")
    report = report_of(run, tmp_path, peak_flops=None, peak_bandwidth=None, peak_source=None)
    words = told(report)
    assert "stepscope calibrate" in words["kernels.*"] and "--gpu" not in words["kernels.*"]
    assert sum("decode.fp8-weights" in item.findings for item in report.not_looked_at) == 1


def test_sensors_that_tell_no_power_are_said(tmp_path: Path) -> None:
    run = costed(model_config=dict(model_config("qwen3-8b")))
    run.con.execute("UPDATE telemetry SET power_w = NULL")
    assert "no sensor told the power" in told(report_of(run, tmp_path))["energy.execution-idle"]


def test_a_ledger_alone_still_answers_what_it_can(tmp_path: Path) -> None:
    """Without a device `decode.small-batch` and `prefill.prompts` come of the ledger, so they were looked for."""
    path = tmp_path / "run.duckdb"
    run = ledger(Recorded())
    run.con.execute(f"ATTACH '{path}' AS kept")
    run.con.execute("COPY FROM DATABASE memory TO kept")
    run.con.execute("DETACH kept")
    with TraceStore.open(path) as store:
        (first, *_) = read_findings(store).not_looked_at
    assert "kernels.*" in first.findings and not {"decode.*", "prefill.prompts"} & set(first.findings)
    assert "--no-trace" in first.mend


def test_steps_of_no_known_kind(tmp_path: Path) -> None:
    run = ledger(Recorded()).step(100, kind="other").kernel(100, "gemm", flops=1.0, bytes=1.0, step_id=0)
    assert "host.*" in report_of(run, tmp_path).not_looked_at[0].findings


@pytest.mark.parametrize("config", ["[]", "null", "3", '{"model_config": {"model_type": 3}}', '{"with_stack": {}}'])
def test_any_config_is_survived(config: str, tmp_path: Path) -> None:
    run = costed()
    run.con.execute("UPDATE runs SET config = ?", [config])
    assert report_of(run, tmp_path).not_looked_at


@pytest.mark.parametrize("name", ["vllm_decode_full", "vllm_prefilldecode_piecewise"])
def test_a_sample_without_its_model_is_no_all_clear(name: str, tmp_path: Path) -> None:
    file, _ = TRACES[name]
    if not (GPU / name / file).exists():
        pytest.skip(f"sample recording is not here: {GPU / name / file}")
    ingest_once([str(GPU / name / file)], tmp_path / "run.duckdb", IngestOptions(finish=Composition().analysis()))
    with TraceStore.open(tmp_path / "run.duckdb") as store:
        report, html = read_findings(store), page(read_report(store))
    assert report.findings == [] and "the model is not known" in told(report)["kernels.*"]
    verdict, withheld = (
        html.partition(f'id="{name}"')[2].partition("</section>")[0] for name in ("verdict", "withheld")
    )
    for part in (verdict, withheld):
        assert "the model is not known" in part and "--model-config MODEL" in part
    assert "of the busy time is not known" in verdict


def test_a_gain_of_which_only_the_most_is_known_is_told_as_that(tmp_path: Path) -> None:
    run = Recorded(with_stack=1).step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9)
    report_of(run, tmp_path)  # closes the window
    run.con.execute("SET VARIABLE run_id = 'r'")
    findings.fill(run.con, "r")
    (row,) = frame(run.con.sql("SELECT * FROM findings")).to_dicts()
    assert (row["severity"], row["predicted_gain"], row["gain_low"], row["gain_high"]) == ("warning", None, None, 0.75)
    made = FindingsReport(run_id="r", findings=[row | {"proof": None, "proved": None}], baseline=None)
    lines = " ".join(" ".join(findings_lines(made, "r", limit=1)).split())
    assert "gain not known; at most 75.0 % of the engine's step time" in lines and "the profiler's" in lines
    assert gain_words(row) == "The gain is not known; it is at most 75.0 % of the engine's step time."


def test_the_verdict_of_a_slowed_host_says_so(tmp_path: Path) -> None:
    name = "b200_vllm_eager_prefill"
    file, _ = TRACES[name]
    if not (GPU / name / file).exists():
        pytest.skip(f"sample recording is not here: {GPU / name / file}")
    ingest_once([str(GPU / name / file)], tmp_path / "run.duckdb", IngestOptions(finish=Composition().analysis()))
    with TraceStore.open(tmp_path / "run.duckdb") as store:
        (check,) = store.query("SELECT status, value FROM health WHERE check_id = 'recording_cost'").to_dicts()
        html = page(read_report(store))
    assert check["status"] == "warning" and check["value"] == pytest.approx(0.863, abs=0.01)
    verdict = html.partition('id="verdict"')[2].partition("</section>")[0]
    assert "Caution: stacks, operator shapes were recorded, which slows the host" in verdict
    assert "The gain is not known; it is at most" in verdict
