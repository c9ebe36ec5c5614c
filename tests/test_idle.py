"""Causes of idle time, each from literals."""

from __future__ import annotations

from typing import Any

import pytest
from idle_recording import US, again, at, caused, detail, recorded
from recording import RUN, Recording

from traces.readers.base import Cat

# -- launched already, or late ------------------------------------------------------------------------------------


def test_a_short_wait_of_a_launched_kernel_is_launch_latency() -> None:
    """Both kernels were launched before the first one ended."""
    recording = (
        recorded().launch(at(0), 1).launch(at(2), 2).kernel(at(5), 10 * US, 1).kernel(at(20), 10 * US, 2, name="second")
    )
    assert caused(recording) == [(15, 20, "launch_latency")]
    assert detail(recording, "launch_latency") == "next is second, launched 18.0 µs before it began, stream 7"


def test_a_long_wait_of_a_launched_kernel_is_a_dependency_or_a_wait_for_ranks() -> None:
    recording = recorded().launch(at(0), 1).launch(at(2), 2).launch(at(4), 3)
    recording.kernel(at(5), 10 * US, 1).kernel(at(30), 10 * US, 2).kernel(
        at(60), 10 * US, 3, name="ncclDevKernel_AllReduce_Sum"
    )
    assert caused(recording) == [(15, 30, "dependency"), (40, 60, "comm_wait")]


def test_a_gap_is_cut_where_the_launch_returns() -> None:
    """The thread launches 30 µs into the gap; from the return of the call on the kernel is on its way."""
    recording = recorded().launch(at(0), 1).kernel(at(5), 10 * US, 1)
    recording.event(Cat.OP, "aten::mm", at(40), 10 * US).launch(at(45), 2, dur=3 * US).kernel(at(55), 10 * US, 2)
    assert caused(recording) == [(15, 48, "host_launch"), (48, 55, "launch_latency")]


@pytest.mark.parametrize(
    ("call", "cause"),
    [("cudaStreamSynchronize", "sync"), ("cudaDeviceSynchronize", "sync"), ("hipMemcpyWithStream", "memcpy"), ("cudaMemcpy", "memcpy")],
)  # fmt: skip
def test_calls_that_keep_the_thread(call: str, cause: str) -> None:
    """The call ends 40 µs into the gap; then an operator launches."""
    recording = recorded().label(at(0), 100 * US).launch(at(0), 1).kernel(at(5), 10 * US, 1)
    recording.event(Cat.RUNTIME, call, at(3), 52 * US).event(Cat.OP, "aten::mm", at(56), 9 * US)
    recording.launch(at(60), 2, dur=2 * US).kernel(at(63), 10 * US, 2)
    assert caused(recording) == [(15, 55, cause), (55, 62, "host_launch"), (62, 63, "launch_latency")]
    assert detail(recording, cause) == f"in call {call}, in the label of the step, thread 1"


def test_an_asynchronous_copy_is_a_launch_unless_the_thread_waits_for_it() -> None:
    recording = recorded().label(at(0), 200 * US).launch(at(0), 1).kernel(at(5), 10 * US, 1)
    recording.event(Cat.RUNTIME, "cudaMemcpyAsync", at(20), 10 * US, corr=2)
    recording.event(Cat.MEMCPY, "Memcpy HtoD", at(40), 5 * US, corr=2, device=0, stream=7)
    recording.event(Cat.RUNTIME, "cudaMemcpyAsync", at(46), 44 * US, corr=3)
    recording.event(Cat.MEMCPY, "Memcpy DtoH (Device -> Pageable)", at(60), 5 * US, corr=3, device=0, stream=7)
    recording.launch(at(100), 4, dur=2 * US).kernel(at(103), 1 * US, 4)
    assert caused(recording) == [
        (15, 30, "host_launch"), (30, 40, "launch_latency"),  # the call returned before the copy began
        (45, 46, "host_launch"), (46, 60, "launch_latency"),
        (65, 90, "memcpy"), (90, 102, "host_launch"), (102, 103, "launch_latency"),
    ]  # fmt: skip


def test_ranges_decide_and_the_innermost_of_them() -> None:
    recording = recorded().label(at(0), 100 * US)
    recording.event(Cat.ANNOTATION, "gpu_model_runner: preprocess", at(1), 30 * US)
    recording.launch(at(2), 1).kernel(at(4), 2 * US, 1)
    recording.event(Cat.ANNOTATION, "gpu_model_runner: forward", at(40), 30 * US).launch(at(50), 2).kernel(
        at(51), 9 * US, 2
    )
    recording.event(Cat.ANNOTATION, "gpu_model_runner: sample", at(105), 40 * US).launch(at(140), 3).kernel(
        at(141), 9 * US, 3
    )
    assert caused(recording) == [
        (6, 40, "host_prepare"),  # in preprocess, and behind it, before the model
        (40, 51, "host_launch"),
        (60, 70, "host_launch"),
        (70, 141, "sampling_output"),  # behind the model, in the label and behind it
    ]
    assert detail(recording, "host_prepare") == "range gpu_model_runner: preprocess, thread 1"


def test_python_frames_and_operators_are_named() -> None:
    recording = recorded().label(at(0), 200 * US).launch(at(2), 1).kernel(at(4), 2 * US, 1)
    frames = (
        "runner.py(7): execute_model",
        "gpu_model_runner.py(9): _prepare_inputs",
        "buffers.py(3): fill",
        "<built-in method copy_>",
    )
    for number, frame in enumerate(frames):
        recording.event(Cat.PYTHON, frame, at(5 + number), (80 - 2 * number) * US)
    recording.event(Cat.PYTHON, "gpu_model_runner.py(9): _model_forward", at(90), 50 * US)
    recording.event(Cat.OP, "aten::addmm", at(95), 40 * US).launch(at(130), 2).kernel(at(131), 2 * US, 2)
    assert caused(recording) == [(6, 90, "host_prepare"), (90, 131, "host_launch")]
    assert detail(recording, "host_prepare") == "in the label of the step, frame buffers.py(3): fill, thread 1"
    assert detail(recording, "host_launch") == (
        "operator aten::addmm, in the label of the step, frame gpu_model_runner.py(9): _model_forward, thread 1"
    )


def test_outside_every_step_it_is_the_thread_that_did_something_else() -> None:
    recording = recorded().label(at(0), 10 * US).launch(at(1), 1).kernel(at(2), 5 * US, 1)
    recording.label(at(3_000), 100 * US).launch(at(3_050), 2).kernel(at(3_051), 5 * US, 2)
    assert caused(recording) == [
        (7, 10, "sampling_output"),
        (10, 3_000, "host_other"),
        (3_000, 3_050, "host_prepare"),
        (3_050, 3_051, "host_launch"),
    ]


def test_without_a_launch_record_nothing_is_claimed() -> None:
    recording = (
        recorded().launch(at(0), 1).kernel(at(5), 10 * US, 1).kernel(at(20), 10 * US).kernel(at(40), 10 * US, stream=9)
    )
    recording.launch(at(12), 2).kernel(at(31), 5 * US, 2)
    assert caused(recording) == [
        (15, 20, "launch_latency"),  # a later kernel of its stream was launched before the gap
        (30, 31, "launch_latency"),
        (36, 40, "unknown"),
    ]


def test_unrecorded_time_is_left_alone_and_never_idle() -> None:
    """A lost graph launch: from it on nobody knows; before it the thread had not launched."""
    recording = recorded().label(at(0), 500 * US).launch(at(0), 1).kernel(at(5), 10 * US, 1)
    recording.event(Cat.RUNTIME, "cudaGraphLaunch", at(60), 5 * US, corr=2)
    recording.launch(at(200), 3).kernel(at(210), 10 * US, 3)
    found = caused(recording)
    assert (60, 210, "unrecorded") in found
    assert sum(end - start for start, end, cause in found if cause != "unrecorded") == 45
    assert recording.one("SELECT idle_ns FROM devices") == 45 * US


def test_a_second_analysis_changes_nothing() -> None:
    recording = recorded().label(at(0), 500 * US).launch(at(0), 1).kernel(at(5), 10 * US, 1)
    recording.event(Cat.RUNTIME, "cudaGraphLaunch", at(60), 5 * US, corr=2).event(Cat.OP, "aten::mm", at(190), 11 * US)
    recording.launch(at(195), 3, dur=2 * US).kernel(at(230), 10 * US, 3).launch(at(300), 4).kernel(at(310), 10 * US, 4)
    first = caused(recording, (-20, 400))
    rows = recording.rows("SELECT * FROM gaps ORDER BY gap_id")
    assert len(first) > 4 and {"unrecorded", "dependency"} & {cause for *_, cause in first}
    assert again(recording) == first
    assert recording.rows("SELECT * FROM gaps ORDER BY gap_id") == rows
    assert recording.rows("SELECT table_name FROM duckdb_tables() WHERE temporary") == []


# -- requests and the ledger --------------------------------------------------------------------------------------


def request(recording: Recording, name: str, **us: Any) -> None:
    """Times in µs after START. `tool` and `session` as in table requests."""
    times = {key: None if us.get(key) is None else at(us[key]) for key in ("arrival", "queued", "finished")}
    recording.con.execute(
        "INSERT INTO requests (run_id, request_id, pass, session_id, arrival_ns, queued_ns, finished_ns, tool_ns, status) "
        "VALUES (?, ?, 'profiled', ?, ?, ?, ?, ?, ?)",
        [RUN, name, us.get("session"), *times.values(), us["tool"] * US if us.get("tool") else None, us.get("status", "ok")],
    )  # fmt: skip


def ledger(recording: Recording, seq: int, name: str, *us: int, pid: int = 7) -> None:
    """A step of one request: schedule from, to, result from, to; µs after START."""
    recording.con.execute(
        "INSERT INTO ledger_steps (run_id, pid, seq, sched_start_ns, sched_end_ns, result_start_ns, result_end_ns, total_tokens, running, "
        "waiting) VALUES (?, ?, ?, ?, ?, ?, ?, 1, 1, 0)", [RUN, pid, seq, *map(at, us)],
    )  # fmt: skip
    recording.con.execute(
        "INSERT INTO ledger_rows (run_id, pid, seq, engine_request_id) VALUES (?, ?, ?, ?)", [RUN, pid, seq, name]
    )


def served() -> Recording:
    """A kernel from 200 to 210 µs and one from 800 to 810 µs, each in a step of its own."""
    recording = recorded()
    for number, us in enumerate((200, 800)):
        recording.label(at(us - 20), 25 * US).launch(at(us - 5), number, dur=5 * US).kernel(at(us), 10 * US, number)
    return recording


def test_nothing_to_do_has_three_causes() -> None:
    recording = served()
    request(recording, "a", arrival=100, queued=150, finished=260, session="s", tool=300)
    request(recording, "b", arrival=700, queued=760, finished=830, session="s")
    ledger(recording, 0, "a", 152, 160, 230, 240)
    ledger(recording, 1, "b", 761, 770, 815, 820)
    assert caused(recording, (0, 1_000)) == [
        (0, 100, "no_work"), (100, 150, "frontend"), (150, 180, "scheduler"), (180, 195, "host_prepare"), (195, 200, "host_launch"),
        (210, 240, "sampling_output"),
        (240, 260, "no_work"),  # the answer is on its way, the session does not wait for its tool yet
        (260, 560, "tool_wait"), (560, 700, "no_work"), (700, 760, "frontend"), (760, 780, "scheduler"), (780, 795, "host_prepare"),
        (795, 800, "host_launch"), (810, 820, "sampling_output"), (820, 1_000, "no_work"),
    ]  # fmt: skip
    assert detail(recording, "tool_wait") == "no request in the engine, 1 of 1 open sessions wait for a tool"
    assert detail(recording, "frontend") == "no request in the engine, 1 sent and not yet queued"
    details = {row["start_ns"]: row["detail"] for row in recording.rows("SELECT start_ns, detail FROM gaps")}
    assert details[at(240)].endswith("1 answers on their way to the client")
    assert (
        details[at(210)]
        == "behind the step, before the engine core takes in its result, thread 1, 1 running, 0 waiting"
    )


def test_a_session_that_does_not_wait_for_a_tool_makes_it_no_work() -> None:
    recording = served()
    request(recording, "a", arrival=100, queued=150, finished=240, session="s", tool=300)
    request(recording, "c", arrival=120, queued=150, finished=300, session="t", tool=200)
    request(recording, "b", arrival=700, queued=760, finished=830, session="s")
    request(recording, "d", arrival=750, queued=760, finished=830, session="t")
    found = caused(recording, (0, 1_000))
    assert (
        300,
        500,
        "tool_wait",
    ) in found  # the first session's tool runs to 540, the other's to 500: both wait to 500
    assert (500, 700, "no_work") in found
    assert "0 of 2 open sessions" in detail(recording, "no_work") or "1 of 2" in detail(recording, "no_work")


def test_a_request_that_never_ends_keeps_the_engine_at_work() -> None:
    recording = served()
    request(recording, "a", arrival=100, queued=150, finished=None, status="running")
    assert {cause for start, _, cause in caused(recording, (0, 1_000)) if start >= 150} == {
        "host_other", "host_prepare", "host_launch", "unknown",
    }  # fmt: skip


def test_a_log_of_another_run_is_not_believed() -> None:
    recording = served()
    request(recording, "a", arrival=5_000, queued=5_001, finished=6_000)
    assert "no_work" not in {cause for *_, cause in caused(recording, (0, 1_000))}
    again(recording)
    assert recording.rows("SELECT status, value FROM health WHERE check_id = 'idle_requests'") == [
        {"status": "warning", "value": 1.0}
    ]


def test_a_recording_without_the_epoch_cannot_be_laid_beside_requests() -> None:
    recording = served()
    request(recording, "a", arrival=150, queued=160, finished=900)
    assert "no_work" not in {cause for *_, cause in caused(recording, (0, 1_000), clock="recording")}


def test_on_a_cpu_the_ranges_around_the_gap_decide() -> None:
    recording = recorded().label(at(0), 100 * US)
    recording.event(Cat.ANNOTATION, "gpu_model_runner: preprocess", at(2), 28 * US).event(
        Cat.OP, "aten::copy_", at(10), 5 * US
    )
    recording.event(Cat.ANNOTATION, "gpu_model_runner: forward", at(32), 60 * US)
    recording.event(Cat.OP, "aten::mm", at(40), 10 * US).event(Cat.OP, "aten::mm", at(55), 30 * US)
    recording.event(Cat.ANNOTATION, "gpu_model_runner: sample", at(110), 60 * US).event(
        Cat.OP, "aten::argmax", at(150), 10 * US
    )
    recording.label(at(300), 100 * US).event(Cat.OP, "aten::mm", at(320), 10 * US)
    found = caused(recording)
    assert found == [
        (15, 32, "host_prepare"), (32, 40, "host_launch"), (50, 55, "host_launch"), (85, 92, "host_launch"),
        (92, 150, "sampling_output"), (160, 170, "sampling_output"), (170, 300, "host_other"), (300, 320, "host_prepare"),
    ]  # fmt: skip
    assert recording.one("SELECT max(kind) FROM kernels") == "cpu_op"
