"""Real recordings of GPUs: every figure that can be known by other means, exactly."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kineto_oracle
import pytest
import timeline_oracle as oracle

from analyzers.roofline_reading import read_roofline
from traces.readers.base import Cat
from traces.store import TraceStore

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
B200 = "gpu-traces/b200_vllm_eager_prefill/eager_trace.json.gz"
B300 = "gpu-traces/b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz"
H100 = "gpu-traces/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
SGLANG_DECODE = "gpu-traces/sglang_decode/sglang_Qwen3-8B_decode.json.gz"
SGLANG_PREFILL = "gpu-traces/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz"
VLLM_DECODE = "gpu-traces/vllm_decode_full/graph_execution.json.gz"
VLLM_MIXED = "gpu-traces/vllm_prefilldecode_piecewise/graph_execution.json.gz"
SAMPLES = (B200, B300, H100, SGLANG_DECODE, SGLANG_PREFILL, VLLM_DECODE, VLLM_MIXED)
LABELLED = tuple(name for name in SAMPLES if name != H100)
ACTIVITIES = {int(Cat.KERNEL): "kernel", int(Cat.MEMCPY): "memcpy", int(Cat.MEMSET): "memset"}

Database = Callable[..., Path]


def rows(path: Path, sql: str) -> list[dict[str, Any]]:
    with TraceStore.open(path) as store:
        return store.query(sql).to_dicts()


def short(name: str) -> str:
    return name.split("/")[1]


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_device_time_and_kernels_equal_a_naive_reading(name: str, sample_database: Database) -> None:
    path = sample_database(name)
    events, _ = kineto_oracle.read(kineto_oracle.file_text(DATA / name))
    found = [event for event in events if event["cat"] in ACTIVITIES]
    (device,) = rows(path, "SELECT * FROM devices")
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in found]
    total = max(end for _, end in spans) - min(start for start, _ in spans)
    busy = oracle.measure(spans)
    assert {event["device"] for event in found} == {device["device"]}
    assert device["busy_ns"] == busy
    assert device["idle_ns"] + device["unrecorded_ns"] == total - busy
    assert device["window_end_ns"] - device["window_start_ns"] == total
    counts = {
        row["kind"]: row["n"] for row in rows(path, "SELECT kind, count(*) AS n FROM kernels WHERE valid GROUP BY kind")
    }
    expected = [ACTIVITIES[event["cat"]] for event in found]
    assert counts == {kind: expected.count(kind) for kind in set(expected)}


@pytest.mark.parametrize("name", [VLLM_DECODE, VLLM_MIXED], ids=short)
def test_device_time_agrees_with_another_tool(name: str, sample_database: Database) -> None:
    """The other tool adds up floats of epoch µs, whose steps are 0.25 µs: it is met within a microsecond."""
    path = sample_database(name)
    with (DATA / name).parent.joinpath("reference", "gpu_timeline.csv").open() as file:
        known = {row["type"]: float(row["time ms"]) * 1e6 for row in csv.DictReader(file)}
    (device,) = rows(path, "SELECT window_end_ns - window_start_ns AS total_ns, * FROM devices")
    assert device["unrecorded_ns"] == 0
    for term in ("busy", "idle", "total"):
        assert device[f"{term}_ns"] == pytest.approx(known[f"{term}_time"], abs=1_000)
    copies = rows(path, "SELECT start_ns, start_ns + dur_ns AS end_ns, kind = 'memcpy' AS copy FROM kernels")
    kernels = [(row["start_ns"], row["end_ns"]) for row in copies if not row["copy"]]
    everything = oracle.measure((row["start_ns"], row["end_ns"]) for row in copies)
    assert oracle.measure(kernels) == pytest.approx(known["computation_time"], abs=1_000)
    assert everything - oracle.measure(kernels) == pytest.approx(known["exposed_memcpy_time"], abs=1_000)


def test_the_decode_sample_has_425_kernels_and_25_us_of_idle(sample_database: Database) -> None:
    path = sample_database(VLLM_DECODE)
    (found,) = rows(
        path, "SELECT idle_ns, (SELECT count(*) FROM kernels WHERE kind = 'kernel') AS kernels FROM devices"
    )
    assert found == {"idle_ns": 25_473, "kernels": 425}


STEPS: dict[str, dict[str, Any]] = {
    B200: {"kind": "prefill", "prefill_reqs": 1, "prefill_tokens": 888, "prefill_qq": 888 * 888, "decode_reqs": 0, "decode_tokens": 0},
    B300: {"kind": "decode", "prefill_reqs": 0, "decode_reqs": 16, "decode_tokens": 16, "decode_kv_tokens": 8193, "graph_mode": "full"},
    H100: {"kind": "other", "prefill_tokens": None, "decode_tokens": None, "graph_mode": "none", "label": "ProfilerStep#6"},
    SGLANG_DECODE: {"kind": "decode", "prefill_tokens": 0, "decode_reqs": 32, "decode_kv_tokens": 32785, "graph_mode": "full"},
    SGLANG_PREFILL: {
        "kind": "prefill", "prefill_reqs": 15, "prefill_tokens": 15360, "prefill_qq": 15728640, "prefill_qk": 15728640,
        "decode_reqs": 0, "decode_tokens": 0, "graph_mode": "none",
    },
    VLLM_DECODE: {"kind": "decode", "prefill_tokens": 0, "decode_reqs": 32, "decode_tokens": 32, "decode_kv_tokens": 55086,
                  "decode_qk": 55086, "graph_mode": "full", "n_graph_launches": 1},
    VLLM_MIXED: {
        "kind": "mixed", "prefill_reqs": 9, "prefill_tokens": 8155, "prefill_kv_tokens": 8430, "prefill_qq": 7475785,
        "prefill_qk": 7671310, "decode_reqs": 37, "decode_tokens": 37, "decode_kv_tokens": 34489, "decode_qk": 34489,
        "graph_mode": "piecewise",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_one_step_with_the_counts_of_its_label(name: str, sample_database: Database) -> None:
    (step,) = rows(sample_database(name), "SELECT * FROM steps")
    assert {key: step[key] for key in STEPS[name]} == STEPS[name]
    assert step["source"] == "label"


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_parts_sum_to_the_whole(name: str, sample_database: Database) -> None:
    path = sample_database(name)
    assert (
        rows(path, "SELECT * FROM devices WHERE busy_ns + idle_ns + unrecorded_ns <> window_end_ns - window_start_ns")
        == []
    )
    assert (
        rows(path, "SELECT * FROM steps WHERE busy_ns + idle_ns + unrecorded_ns <> device_end_ns - device_start_ns")
        == []
    )
    assert rows(path, "SELECT * FROM steps WHERE prefill_ns + decode_ns + other_ns <> busy_ns") == []
    (sums,) = rows(
        path,
        """SELECT
        (SELECT sum(busy_ns) FROM devices) AS devices, (SELECT sum(busy_ns) FROM kernels WHERE valid) AS kernels,
        (SELECT coalesce(sum(busy_ns), 0) FROM steps) AS steps,
        (SELECT coalesce(sum(busy_ns), 0) FROM kernels WHERE valid AND step_id IS NULL) AS unattributed""",
    )
    assert sums["devices"] == sums["kernels"] == sums["steps"] + sums["unattributed"]
    if name in LABELLED:
        assert sums["unattributed"] <= 0.01 * sums["devices"]
    cuts = rows(
        path, "SELECT (SELECT sum(dur_ns) FROM gaps) AS gaps, sum(idle_ns + unrecorded_ns) AS idle FROM devices"
    )
    assert (cuts[0]["gaps"] or 0) == cuts[0]["idle"]


@pytest.mark.parametrize("name", LABELLED, ids=short)
def test_every_activity_of_a_labelled_sample_is_linked_by_its_launch(name: str, sample_database: Database) -> None:
    links = rows(sample_database(name), "SELECT DISTINCT step_link FROM kernels")
    assert {row["step_link"] for row in links} <= {"launch", "graph"}


def test_kernels_that_run_half_a_second_after_their_label_are_linked(sample_database: Database) -> None:
    path = sample_database(SGLANG_PREFILL)
    (found,) = rows(path, "SELECT count(*) FILTER (WHERE k.step_id IS NULL) AS loose, min(k.start_ns - s.host_end_ns) AS first, "
                          "max(k.start_ns - s.host_start_ns) AS last FROM kernels AS k LEFT JOIN steps AS s USING (step_id)")  # fmt: skip
    assert found["loose"] == 0
    assert found["last"] > 400_000_000


def test_kernels_without_a_launch_are_marked(sample_database: Database) -> None:
    """436 kernels (and 73 memsets) of the H100 sample were launched before its slice begins."""
    path = sample_database(H100)
    (found,) = rows(path, "SELECT count(*) FILTER (WHERE kind = 'kernel') AS kernels, "
                          "list(DISTINCT coalesce(step_link, 'none') ORDER BY coalesce(step_link, 'none')) AS links "
                          "FROM kernels WHERE launch_id IS NULL")  # fmt: skip
    assert found == {"kernels": 436, "links": ["none", "time"]}
    (health,) = rows(path, "SELECT status, value FROM health WHERE check_id = 'launch_outside'")
    assert health["status"] == "warning"
    assert health["value"] == pytest.approx(509 / 1707)


def test_slices_of_one_recording_are_one_timeline(sample_database: Database) -> None:
    """Together the two SGLang slices close the gap that looks like 97.9 % idle in one of them."""
    path = sample_database(SGLANG_DECODE, SGLANG_PREFILL)
    (device,) = rows(
        path, "SELECT window_end_ns - window_start_ns AS total_ns, busy_ns, idle_ns, unrecorded_ns FROM devices"
    )
    assert device["total_ns"] == pytest.approx(997_757_000, abs=1_000)
    assert device["busy_ns"] == pytest.approx(502_576_000, abs=1_000)
    assert device["unrecorded_ns"] == pytest.approx(493_000_000, abs=1_000_000)
    assert device["busy_ns"] + device["idle_ns"] + device["unrecorded_ns"] == device["total_ns"]
    steps = rows(path, "SELECT kind FROM steps ORDER BY seq")
    assert [step["kind"] for step in steps] == ["prefill", "decode"]
    assert rows(path, "SELECT * FROM kernels WHERE step_id IS NULL") == []


def test_a_slice_alone_does_not_call_its_wait_idle(sample_database: Database) -> None:
    path = sample_database(SGLANG_DECODE)
    (device,) = rows(path, "SELECT window_end_ns - window_start_ns AS total_ns, * FROM devices")
    assert device["unrecorded_ns"] > 0.97 * device["total_ns"]
    (health,) = rows(path, "SELECT status FROM health WHERE check_id = 'unrecorded'")
    assert health["status"] == "withheld"


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_categories_leave_little_over(name: str, sample_database: Database) -> None:
    path = sample_database(name)
    (found,) = rows(path, "SELECT sum(busy_ns) FILTER (WHERE category = 'other' OR category IS NULL) AS other, "
                          "sum(busy_ns) AS busy FROM kernels WHERE valid")  # fmt: skip
    assert (found["other"] or 0) <= 0.02 * found["busy"]


def test_without_a_model_a_mixed_step_is_not_divided_and_use_of_the_peaks_is_not_told(
    sample_database: Database,
) -> None:
    """96 % of the time of this step has no known cost: any share of it would be made up."""
    path = sample_database(VLLM_MIXED)
    (step,) = rows(path, "SELECT * FROM steps")
    assert step["kind"] == "mixed" and step["busy_ns"] > 0
    nothing = (
        "prefill_ns",
        "decode_ns",
        "split_low_ns",
        "split_high_ns",
        "interference_ns",
        "side",
        "intensity",
        "roof_fraction",
    )
    assert {step[name] for name in nothing} == {None}
    (check,) = rows(path, "SELECT status, value, message FROM health WHERE check_id = 'mixed_split'")
    assert (check["status"], check["value"]) == ("warning", 1.0)
    assert "1 of 1 mixed steps" in check["message"] and "--model-config" in check["message"]
    assert rows(path, "SELECT count(prefill_ns) AS n FROM kernels WHERE step_id IS NOT NULL AND busy_ns > 0") == [
        {"n": 0}
    ]
    with TraceStore.open(path) as store:
        data = read_roofline(store)
    (whole,) = data["phases"]
    assert whole["phase"] == "all" and whole["coverage"] == data["coverage"] < 0.05
    assert [whole[name] for name in ("mfu", "mbu", "mfu_wall", "mbu_wall", "side", "intensity")] == [None] * 6
    for row in data["rows"]:
        assert row["coverage"] >= 0.5 or (row["side"], row["roof_fraction"], row["bound"]) == (None, None, None)


def test_a_duration_that_holds_unrecorded_time_is_not_told(sample_database: Database) -> None:
    """The step of this slice began 464 ms before its first recorded kernel."""
    with TraceStore.open(sample_database(SGLANG_DECODE)) as store:
        (step,) = store.named("summary_steps", "analyzers").to_dicts()
        (phase,) = store.named("phases_totals", "analyzers").to_dicts()
    assert step["busy_ns"] > 9_000_000 and [step[f"p{at}_ns"] for at in (50, 90, 99)] == [None] * 3
    assert phase["tokens_per_device_s"] > 0 and phase["tokens_per_window_s"] is None
