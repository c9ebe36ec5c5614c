"""How recordings go wrong, each from literals: what is marked, what is withheld, and that the parts still sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import DECODE, PREFILL, RUN, Recording

from traces import health
from traces.readers.base import Cat, ReadOptions
from traces.readers.kineto import KinetoReader
from traces.sink import StageSink

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "gpu-traces"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="sample recordings are not here")

HEALTHY_CHECKS = {
    "device_activity",
    "capture_phase",
    "graph_kernels",
    "launch_kernels",
    "steps_without_activity",
    "malformed_times",
    "displaced_records",
    "stream_overrun",
    "giant_activity",
    "head_missing",
    "tail_missing",
    "unrecorded",
    "launch_outside",
    "launch_skew",
    "truncated",
    "empty_files",
    "missing_ranks",
}
MS, S = 1_000_000, 1_000_000_000
START = 1_000 * S


def healthy(steps: int = 4) -> Recording:
    """Steps of 10 ms, each with two launches and two kernels of 3 ms."""
    recording = Recording().file(distributedInfo={"rank": 0, "world_size": 1})
    for step in range(steps):
        at = START + step * 10 * MS
        recording.label(at, 2 * MS)
        for number in range(2):
            corr = 10 * step + number
            recording.launch(at + number * MS, corr).kernel(at + (1 + 4 * number) * MS, 3 * MS, corr)
    return recording


def test_a_healthy_recording_is_healthy() -> None:
    recording = healthy()
    found = recording.check()
    assert {row["status"] for row in found.values()} == {"ok"}
    assert {check for _, check in found} == HEALTHY_CHECKS
    assert all(row["message"] for row in found.values())
    assert health.withheld(recording.con, RUN) == {}
    assert recording.rows("SELECT * FROM steps WHERE NOT trusted") == []
    assert recording.one("SELECT unrecorded_ns FROM devices") == 0


def test_checking_again_changes_nothing() -> None:
    recording = graphs(recorded=[0, 9], launched=10)
    first = recording.check()
    gaps = recording.rows("SELECT * FROM gaps ORDER BY gap_id")
    health.check(recording.con, RUN)
    assert recording.health() == first
    assert recording.rows("SELECT * FROM gaps ORDER BY gap_id") == gaps
    recording.assert_exact()


def test_checking_a_finished_database_keeps_what_only_the_staging_tables_told() -> None:
    recording = healthy()
    recording.file(1, rank=3, distributedInfo={"rank": 3, "world_size": 5})
    first = recording.check()
    recording.con.execute("DETACH stage")
    health.check(recording.con, RUN)
    again = recording.health()
    assert again == first and again[None, "missing_ranks"]["value"] == 3


# -- a host that recording slowed


def slow(**facts: object) -> Recording:
    """Steps of 10 ms with 6 ms of kernels, and what the profiler says it kept."""
    recording = healthy()
    recording.link()
    recording.con.execute("INSERT INTO runs (run_id, config) VALUES (?, ?)", [RUN, json.dumps(facts)])
    return recording


def recording_cost(recording: Recording) -> dict[str, object] | None:
    health.check(recording.con, RUN)
    return recording.health().get((None, "recording_cost"))


def test_stacks_and_shapes_without_a_control_pass_are_warned_of() -> None:
    row = recording_cost(slow(with_stack=1, record_shapes=True))
    assert row is not None and row["status"] == "warning" and row["threshold"] == 0.05
    assert row["value"] == pytest.approx(0.3, abs=0.15) and "devices.idle_ns" in row["affects"]
    assert "stacks, operator shapes were recorded" in row["message"] and "stepscope profile" in row["message"]


def test_a_control_pass_tells_what_recording_cost() -> None:
    recording = slow(record_shapes=1)
    recording.con.execute("INSERT INTO ledger_steps (run_id, pass) VALUES (?, 'control')", [RUN])
    row = recording_cost(recording)
    assert row is not None and row["status"] == "ok"


def test_a_device_that_is_never_idle_is_not_slowed_by_its_host() -> None:
    recording = slow(with_stack="1")
    recording.con.execute("UPDATE devices SET busy_ns = window_end_ns - window_start_ns, idle_ns = 0")
    row = recording_cost(recording)
    assert row is not None and (row["status"], row["value"]) == ("ok", 0.0)


@pytest.mark.parametrize(
    "facts", [{}, {"with_stack": 0, "record_shapes": False}, {"with_stack": {}, "record_shapes": "no"}]
)
def test_a_recording_that_names_nothing_has_no_such_row(facts: dict[str, object]) -> None:
    assert recording_cost(slow(**facts)) is None


# -- graph launches without kernels


def graphs(recorded: list[int], launched: int) -> Recording:
    """One graph launch every 10 ms; those in `recorded` have two kernels of 4 ms."""
    recording = Recording().file()
    for number in range(launched):
        at = START + number * 10 * MS
        recording.label(at, MS).launch(at, number, name="cudaGraphLaunch")
        if number in recorded:
            recording.kernel(at + MS, 4 * MS, number).kernel(at + 5 * MS, 4 * MS, number)
    return recording


def test_graph_launches_without_kernels_withhold_idle() -> None:
    recording = graphs(recorded=[0, 3, 9], launched=10)
    found = recording.check()
    row = found[0, "graph_kernels"]
    assert (row["status"], row["value"], row["threshold"]) == ("withheld", 0.3, 0.5)
    assert "only 3 of 10 graph launches (30.0 %)" in row["message"] and "--cuda-graph-trace=node" in row["message"]
    reasons = health.withheld(recording.con, RUN)
    assert reasons["devices.idle_ns"] == row["message"] and "gaps" in reasons
    busy, idle, unrecorded = recording.one("SELECT busy_ns, idle_ns, unrecorded_ns FROM devices")
    assert busy == 24 * MS
    # behind each lost launch nothing is known until the next recorded kernel: from 10 to 31 ms and from 40 to 91 ms
    assert unrecorded == 21 * MS + 51 * MS
    assert idle == 98 * MS - busy - unrecorded
    assert [row["seq"] for row in recording.rows("SELECT seq FROM steps WHERE trusted ORDER BY seq")] == [0, 3, 9]


def test_a_few_lost_graph_launches_are_a_warning() -> None:
    found = graphs(recorded=[0, 1, 2, 3, 4, 5, 7, 8, 9], launched=10).check()
    assert found[0, "graph_kernels"]["status"] == "warning"
    assert found[0, "graph_kernels"]["value"] == 0.9
    assert found[0, "unrecorded"]["status"] == "warning"


def test_dropped_records_of_plain_launches() -> None:
    recording = Recording().file()
    for number in range(10):
        recording.launch(START + number * MS, number)
        if number in (0, 9):
            recording.kernel(START + number * MS + 10_000, 1000, number)
    recording.launch(START + 5 * MS + 50_000, 77, name="cudaLaunchHostFunc")  # a host function never has a kernel
    found = recording.check()
    assert (found[0, "launch_kernels"]["status"], found[0, "launch_kernels"]["value"]) == ("withheld", 0.2)
    assert "8 of 10 launches" in found[0, "launch_kernels"]["message"]


# -- steps without activity, one giant event


def test_giant_event_beside_empty_steps() -> None:
    recording = Recording().file()
    for step in range(10):
        recording.label(START + step * 10 * MS, 8 * MS).launch(START + step * 10 * MS, step)
    recording.kernel(START + MS, 2 * MS, 0).kernel(START + 90 * MS, 2 * MS, 9)
    recording.kernel(START + 3 * MS, 400 * S, None, name="bogus", stream=9)
    found = recording.check()
    giant = recording.one("SELECT valid, invalid_reason FROM kernels WHERE name = 'bogus'")
    assert giant == (False, "fills more than half of the recording")
    assert found[0, "giant_activity"]["value"] == 1 and "bogus" in found[0, "giant_activity"]["message"]
    steps = found[0, "steps_without_activity"]
    assert (steps["status"], steps["value"]) == ("withheld", 0.8)
    assert "8 of 10 steps have no device activity (step_id 2, 3, 4, 5, 6, …)" in steps["message"]
    assert recording.one("SELECT busy_ns, window_end_ns - window_start_ns FROM devices") == (4 * MS, 91 * MS)
    assert "devices.idle_ns" in health.withheld(recording.con, RUN)


def test_a_collective_may_wait_for_long() -> None:
    recording = Recording().file()
    recording.kernel(START, 10 * S, None, name="ncclDevKernel_AllReduce_Sum").kernel(START + 11 * S, MS, None)
    found = recording.check()
    assert found[0, "giant_activity"]["value"] == 0
    assert recording.one("SELECT busy_ns FROM devices") == 10 * S + MS


def test_a_single_long_kernel_is_no_giant() -> None:
    assert Recording().file().kernel(START, 5 * S, None).check()[0, "giant_activity"]["value"] == 0


# -- times that cannot be


@pytest.mark.parametrize(
    ("ts", "dur", "reason"),
    [
        (None, 5, "no usable start time"),
        (START + 50 * MS, None, "no usable duration"),
        (START + 50 * MS, -5, "negative duration"),
        (START + 50 * MS, 0, "no duration recorded"),
        (0, 5, "no start recorded"),
        (0, 0, "no duration recorded"),
    ],
)
def test_malformed_times_are_in_no_sum(ts: int | None, dur: int | None, reason: str) -> None:
    recording = healthy()
    recording.kernel(ts, dur, None, name="odd")
    found = recording.check()
    assert recording.one("SELECT valid, invalid_reason, busy_ns FROM kernels WHERE name = 'odd'") == (False, reason, 0)
    row = found[0, "malformed_times"]
    assert (row["status"], row["value"]) == ("warning", 1) and reason in row["message"]
    assert recording.one("SELECT busy_ns, window_start_ns FROM devices") == (24 * MS, START + MS)


def test_zero_may_be_the_start_of_a_recording() -> None:
    recording = Recording().file().kernel(0, 5, None).kernel(10, 5, None)
    assert recording.check()[0, "malformed_times"]["value"] == 0
    assert recording.one("SELECT busy_ns FROM devices") == 10


@pytest.mark.parametrize(("past", "valid"), [(2 * S, False), (S - 1, True)])
def test_duration_past_the_next_activity_of_its_stream(past: int, valid: bool) -> None:
    recording = healthy(steps=400)  # four seconds, so that the long one is no giant
    recording.kernel(START, 5 * MS + past, None, name="long", stream=8)
    recording.kernel(START + 5 * MS, MS, None, stream=8)
    found = recording.check()
    assert recording.one("SELECT valid FROM kernels WHERE name = 'long'") is valid
    assert found[0, "stream_overrun"]["value"] == (0 if valid else 1)
    if not valid:
        assert "ends 2.0 s after the next activity of its stream began" in found[0, "stream_overrun"]["message"]


@pytest.mark.parametrize("shift", [10**14, -(10**14)])
@pytest.mark.parametrize("host", [True, False])
def test_first_records_of_a_later_session_are_shifted(shift: int, host: bool) -> None:
    recording = healthy() if host else Recording().file()
    if not host:
        for number in range(8):
            recording.kernel(10**6 * S + number * 10 * MS, 3 * MS, None)
    base = START if host else 10**6 * S
    for number in range(3):
        recording.kernel(base + shift + number * MS, MS, None, name="shifted")
    found = recording.check()
    assert recording.one("SELECT count(*) FROM kernels WHERE name = 'shifted' AND NOT valid") == 3
    row = found[0, "displaced_records"]
    assert (row["status"], row["value"]) == ("warning", 3)
    assert "100000 s away" in row["message"] and "The window begins with the first record that fits" in row["message"]
    assert recording.one("SELECT window_end_ns - window_start_ns FROM devices") < S


def test_hours_of_idle_time_are_not_displaced_records() -> None:
    recording = healthy()
    later = START + 5 * 3600 * S
    recording.label(later, MS).launch(later, 900).kernel(later + MS, MS, 900)
    found = recording.check()
    assert found[0, "displaced_records"]["value"] == 0
    assert recording.one("SELECT count(*) FROM kernels WHERE NOT valid") == 0


# -- clocks, edges, files


def test_kernel_before_its_launch() -> None:
    recording = (
        Recording()
        .file()
        .launch(START + 50_000, 1)
        .kernel(START, MS, 1)
        .launch(START + 2 * MS, 2)
        .kernel(START + 3 * MS, MS, 2)
    )
    row = recording.check()[0, "launch_skew"]
    assert (row["status"], row["value"]) == ("warning", 50_000)
    assert "1 of 2 activities start before their launch, by up to 50.0 µs" in row["message"]
    assert recording.rows("SELECT * FROM gaps WHERE dur_ns < 0") == []


def test_head_and_tail_of_a_capture_window() -> None:
    recording = Recording().file()
    for number in range(10):
        recording.launch(START + number * 10 * MS, number)
        if 3 <= number < 8:
            recording.kernel(START + number * 10 * MS + MS, 5 * MS, number)
    found = recording.check(window=(START, START + 100 * MS))
    head, tail = found[0, "head_missing"], found[0, "tail_missing"]
    assert (head["status"], head["value"]) == ("withheld", 31 * MS) and "first 3 launches" in head["message"]
    assert (tail["status"], tail["value"]) == ("withheld", 24 * MS) and "last 2 launches" in tail["message"]
    # unrecorded from the first lost launch on, at both ends
    assert recording.one("SELECT busy_ns, unrecorded_ns FROM devices") == (25 * MS, 31 * MS + 20 * MS)
    assert found[0, "launch_kernels"]["status"] == "ok"  # the edges are not counted twice


def test_truncated_and_empty_files_are_named() -> None:
    recording = healthy()
    recording.con.execute("UPDATE stage.sources SET truncated = 'the array does not end'")
    recording.file(1, name="second.json")
    found = recording.check()
    assert "f0.json is cut off: the array does not end" in found[0, "truncated"]["message"]
    assert found[0, "empty_files"]["value"] == 1 and "second.json" in found[0, "empty_files"]["message"]
    assert found[0, "truncated"]["status"] == found[0, "empty_files"]["status"] == "warning"


def test_no_device_activity() -> None:
    recording = Recording().file(deviceProperties=[{"id": 0}])
    for number in range(5):
        recording.label(START + number * MS, MS // 2).launch(START + number * MS, number)
    found = recording.check()
    row = found[0, "device_activity"]
    assert (row["status"], row["value"]) == ("withheld", 0) and "the host launched 5 times" in row["message"]
    assert "devices.busy_ns" in health.withheld(recording.con, RUN)


def test_only_unusable_activities() -> None:
    found = Recording().file().kernel(START, -1, None).check()
    assert "none of the 1 device activities has a usable time" in found[0, "device_activity"]["message"]


def test_capture_phase_given_as_the_run() -> None:
    recording = Recording().file().event(Cat.ANNOTATION, "capture_32_FULL", START, 10 * MS)
    recording.event(Cat.RUNTIME, "hipStreamBeginCapture", START, 1000)
    for number in range(20):
        recording.launch(START + number * MS // 10, number, name="hipLaunchKernel")
    recording.kernel(START + 9 * MS, 1000, 19)
    row = recording.check()[0, "capture_phase"]
    assert (row["status"], row["value"]) == ("withheld", 1) and "not of serving" in row["message"]


def test_graphs_captured_while_serving_are_a_warning() -> None:
    recording = healthy()
    recording.event(Cat.RUNTIME, "cudaStreamBeginCapture", START + MS, 1000)
    assert recording.check()[0, "capture_phase"]["status"] == "warning"


def test_graphs_recorded_as_wholes() -> None:
    recording = Recording().file(graph_trace="graph").launch(START, 1, name="cudaGraphLaunch")
    recording.kernel(START + 1000, MS, 1, name="CUDA graph 7")
    row = recording.check()[0, "graph_level"]
    assert (row["status"], row["value"]) == ("warning", 1) and "--cuda-graph-trace=node" in row["message"]


# -- slices


def waiting(*, record: bool) -> Recording:
    """A stream waits for an event; its kernel was launched at 0.2 ms and runs at 500 ms."""
    recording = Recording().file().launch(START, 1).kernel(START + 10_000, 10_000, 1)
    if record:
        recording.event(Cat.RUNTIME, "hipEventRecord", START + 50_000, 1000)
    recording.event(Cat.RUNTIME, "hipStreamWaitEvent", START + 100_000, 1000)
    recording.label(START, MS)
    for number in range(3):
        recording.launch(START + 200_000 + number * 1000, 2 + number)
        recording.kernel(START + 500 * MS + number * 3 * MS, MS, 2 + number)
    return recording


def test_wait_for_work_outside_the_slice_is_not_idle() -> None:
    recording = waiting(record=False)
    found = recording.check()
    row = found[0, "unrecorded"]
    assert row["status"] == "withheld" and 0.98 < row["value"] < 1
    assert "wait for work outside the recording" in row["message"] and "slice" in row["message"]
    pieces = recording.rows(
        "SELECT start_ns - 1000000000000 AS at, dur_ns, detail FROM gaps WHERE cause = 'unrecorded'"
    )
    # from the launch on; the two later gaps of 2 ms have work of the recording before them
    assert pieces == [{"at": 200_000, "dur_ns": 500 * MS - 200_000, "detail": "wait for work outside the recording"}]
    assert set(health.withheld(recording.con, RUN)) == {"devices.idle_ns", "steps.idle_ns"}


def test_an_explained_wait_is_idle() -> None:
    recording = waiting(record=True)
    assert recording.check()[0, "unrecorded"]["status"] == "ok"
    assert recording.one("SELECT unrecorded_ns FROM devices") == 0


def test_activities_launched_outside() -> None:
    recording = healthy()
    for number in range(6):
        recording.kernel(START + (41 + number) * MS, MS // 2, 500 + number)
    row = recording.check()[0, "launch_outside"]
    assert row["status"] == "warning" and round(row["value"], 3) == round(6 / 14, 3)
    assert "6 of 14 activities (42.9 %)" in row["message"]
    only_device = Recording().file().kernel(START, MS, None).check()[0, "launch_outside"]
    assert only_device["value"] == 1 and "holds no launches" in only_device["message"]


def test_time_between_two_files_is_not_idle() -> None:
    recording = Recording().file(0, name="a.json").file(1, name="b.json")
    recording.launch(START, 1).kernel(START + MS, MS, 1).event(Cat.INSTANT, "Record Window End", START + 4 * MS, 0)
    recording.event(Cat.INSTANT, "Iteration Start", START + 60 * S, 0, src=1)
    recording.launch(START + 60 * S + MS, 1, src=1).kernel(START + 60 * S + 2 * MS, MS, 1, src=1)
    found = recording.check()
    assert recording.one("SELECT busy_ns, idle_ns, unrecorded_ns FROM devices") == (
        2 * MS,
        4 * MS,
        60 * S - 5 * MS + MS,
    )
    row = found[0, "unrecorded"]
    assert row["status"] == "warning" and "between two files" in row["message"]  # what is left as idle can be believed
    causes = recording.rows("SELECT cause, dur_ns FROM gaps ORDER BY start_ns")
    assert [item["cause"] for item in causes] == [None, "unrecorded", None]


# -- several ranks


def test_missing_ranks_and_repeated_pids() -> None:
    recording = Recording()
    for src, rank in enumerate((0, 2)):
        recording.file(src, rank=rank, distributedInfo={"rank": rank, "world_size": 4})
        recording.launch(START, 1, src=src, pid=251).kernel(START + MS, MS, 1, src=src)
    found = recording.check()
    row = found[None, "missing_ranks"]
    assert (row["status"], row["value"]) == ("warning", 2)
    assert "2 of 4 ranks are missing (1, 3)" in row["message"]
    assert found[None, "pid_clash"]["value"] == 1 and "kept apart by rank" in found[None, "pid_clash"]["message"]
    assert {rank for rank, check in found if check == "device_activity"} == {0, 2}


def test_unknown_size_of_the_group() -> None:
    row = Recording().file().kernel(START, MS, None).check()[None, "missing_ranks"]
    assert (row["status"], row["value"]) == ("ok", None)


def test_reasons_are_those_of_the_first_check() -> None:
    recording = healthy()
    recording.check()
    recording.con.execute("DELETE FROM health")
    for number, affects in enumerate((["gaps", "steps"], ["gaps"])):
        recording.con.execute(
            "INSERT INTO health VALUES (?, 0, ?, 'withheld', 0, 0, ?, ?)",
            [RUN, f"c{number}", json.dumps(affects), f"because {number}"],
        )
    assert health.withheld(recording.con, RUN) == {"gaps": "because 0", "steps": "because 0"}
    assert health.withheld(recording.con, "another") == {}


# -- any recording at all

launches = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(0, 12), st.sampled_from("kglw"), st.integers(7, 8)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(rows=launches, two_files=st.booleans())
def test_parts_sum_to_the_whole_for_any_recording(rows: list[tuple[int, int, int, str, int]], two_files: bool) -> None:
    recording = Recording().file(0).file(1)
    for number, (at, wait, dur, kind, stream) in enumerate(rows):
        src = number % 2 if two_files else 0
        start = START + at * MS + (src * 200 * MS)
        if kind == "w":
            recording.event(Cat.RUNTIME, "cudaStreamWaitEvent", start, 10, src=src)
            continue
        recording.launch(start, number, name="cudaGraphLaunch" if kind == "g" else "cudaLaunchKernel", src=src)
        if kind != "l":
            recording.kernel(start + wait * MS // 2, dur * MS, number, src=src, stream=stream)
    before = recording.check()  # asserts that parts sum, and that gaps neither overlap nor vanish
    busy = recording.one("SELECT coalesce(sum(busy_ns), 0) FROM devices")
    assert busy == recording.one("SELECT coalesce(sum(busy_ns), 0) FROM kernels WHERE valid")
    health.check(recording.con, RUN)
    assert recording.health() == before


# -- real recordings


def sample(*names: str) -> Recording:
    recording = Recording()
    sink = StageSink(recording.con)
    for src, name in enumerate(names):
        report = KinetoReader().read(DATA / name, src, sink, ReadOptions())
        meta = {key: value for key, value in report.meta.items() if key in ("deviceProperties", "distributedInfo")}
        recording.file(src, rank=report.rank or 0, trace_id=report.trace_id, base_ns=report.base_ns, name=name, **meta)
        recording.con.execute("UPDATE stage.sources SET events = ? WHERE src = ?", [report.events, src])
    sink.close()
    recording.texts, recording.events = {}, {}
    return recording


@needs_data
def test_a_decode_slice_is_not_idle_at_all() -> None:
    recording = sample("sglang_decode/sglang_Qwen3-8B_decode.json.gz")
    row = recording.check()[0, "unrecorded"]
    assert row["status"] == "withheld" and 0.977 < row["value"] < 0.979


@needs_data
def test_two_slices_of_one_recording() -> None:
    names = (
        "sglang_decode/sglang_Qwen3-8B_decode.json.gz",
        "sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    )
    for order in (names, names[::-1]):
        recording = sample(*order)
        recording.check()
        busy, idle, unrecorded = recording.one("SELECT busy_ns, idle_ns, unrecorded_ns FROM devices")
        assert busy == 502_575_557 and idle < 2 * MS  # the gap of the decode slice is closed
        assert 493 * MS < unrecorded < 494 * MS  # the other slice's own wait stays
        assert recording.one("SELECT count(*) FROM steps") == 2


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        "vllm_decode_full/graph_execution.json.gz",
        "vllm_prefilldecode_piecewise/graph_execution.json.gz",
        "b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz",
    ],
)
def test_samples_in_order_stay_unsuspected(name: str) -> None:
    recording = sample(name)
    found = recording.check()
    assert {key[1] for key, row in found.items() if row["status"] != "ok"} == set()


@needs_data
def test_capture_sample_is_refused_as_a_run() -> None:
    path = next((DATA / "vllm_decode_full" / "capture").glob("graph_capture*.json.gz"))
    recording = sample(str(path.relative_to(DATA)))
    assert recording.check()[0, "capture_phase"]["status"] == "withheld"


def test_labels_of_the_builder_are_step_labels() -> None:
    recording = Recording().file().label(START, MS, DECODE).label(START + 2 * MS, MS, PREFILL).kernel(START, MS, None)
    recording.check()
    assert [row["kind"] for row in recording.rows("SELECT kind FROM steps ORDER BY seq")] == ["decode", "prefill"]
