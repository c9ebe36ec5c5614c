"""Steps from labels, frames and launches: their windows, kinds, counts and device time."""

from __future__ import annotations

from typing import Any

import pytest
from recording import DECODE, PREFILL, Recording

from traces.readers.base import Cat

US = 1_000
AT = 1_000 * US
DETAILED = "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk400sqsq4sqsk400)"


def recording() -> Recording:
    return Recording().file(distributedInfo={"rank": 0, "world_size": 1})


def steps(target: Recording, columns: str) -> list[dict[str, Any]]:
    return target.link().rows(f"SELECT {columns} FROM steps ORDER BY rank, seq")


def kernel(target: Recording, at: int, corr: int, dur: int = 5 * US) -> Recording:
    return target.launch(at, corr).kernel(at + 10 * US, dur, corr)


def test_two_labels_of_one_step_are_one_step_with_what_both_say() -> None:
    target = recording().label(AT, 80 * US, DECODE).label(AT + 5 * US, 60 * US, DETAILED)
    target.label(AT + 100 * US, 50 * US, PREFILL)
    kernel(kernel(target, AT + 10 * US, 1), AT + 110 * US, 2)
    assert steps(target, "kind, label, host_start_ns, decode_reqs, decode_kv_tokens, n_kernels") == [
        {"kind": "decode", "label": DETAILED, "host_start_ns": AT, "decode_reqs": 4, "decode_kv_tokens": 400, "n_kernels": 1},
        {"kind": "prefill", "label": PREFILL, "host_start_ns": AT + 100 * US, "decode_reqs": 0, "decode_kv_tokens": 0, "n_kernels": 1},
    ]  # fmt: skip


def test_labels_that_touch_are_two_steps() -> None:
    target = recording().label(AT, 50 * US, DECODE).label(AT + 50 * US, 50 * US, DECODE)
    assert [row["host_start_ns"] for row in steps(target, "host_start_ns")] == [AT, AT + 50 * US]


def test_an_unknown_label_is_no_reason_to_drop_a_step() -> None:
    target = kernel(recording().label(AT, 50 * US, "ProfilerStep#3"), AT + US, 1)
    assert steps(target, "label, kind, source, prefill_tokens, decode_tokens, n_kernels") == [
        {"label": "ProfilerStep#3", "kind": "other", "source": "label", "prefill_tokens": None, "decode_tokens": None, "n_kernels": 1}
    ]  # fmt: skip


def test_profiler_steps_give_way_to_the_engine_s_labels() -> None:
    target = recording().label(AT, 500 * US, "ProfilerStep#3")
    target.label(AT + 10 * US, 50 * US, DECODE).label(AT + 100 * US, 50 * US, DECODE)
    assert [row["label"] for row in steps(target, "label")] == [DECODE, DECODE]


def test_windows_run_to_the_next_label_and_the_last_one_to_the_thread_s_end() -> None:
    target = recording().label(AT, 50 * US).label(AT + 100 * US, 50 * US)
    target.event(Cat.OP, "aten::argmax", AT + 170 * US, 20 * US)
    kernel(target, AT + 160 * US, 1)
    assert steps(target, "host_end_ns") == [{"host_end_ns": AT + 100 * US}, {"host_end_ns": AT + 190 * US}]


def test_device_time_of_a_step_is_its_own() -> None:
    """The second step begins on the device while the first still runs: the time is the first one's."""
    target = recording().label(AT, 40 * US).label(AT + 50 * US, 40 * US)
    target.launch(AT + US, 1).kernel(AT + 100 * US, 50 * US, 1, stream=7)
    target.launch(AT + 2 * US, 2).kernel(AT + 170 * US, 10 * US, 2, stream=7)
    target.launch(AT + 51 * US, 3).kernel(AT + 140 * US, 20 * US, 3, stream=8)
    assert steps(target, "busy_ns, idle_ns, device_start_ns, device_end_ns, n_kernels") == [
        {"busy_ns": 60 * US, "idle_ns": 10 * US, "device_start_ns": AT + 100 * US, "device_end_ns": AT + 180 * US, "n_kernels": 2},
        {"busy_ns": 10 * US, "idle_ns": 0, "device_start_ns": AT + 140 * US, "device_end_ns": AT + 160 * US, "n_kernels": 1},
    ]  # fmt: skip
    assert target.rows("SELECT busy_ns, idle_ns FROM devices") == [{"busy_ns": 70 * US, "idle_ns": 10 * US}]
    assert target.rows("SELECT step_before IS NULL AS none_before, step_after FROM gaps") == [
        {"none_before": False, "step_after": 1}
    ]


def test_a_gap_between_rows_of_another_step_is_idle_of_the_step_around_it() -> None:
    target = recording().label(AT, 40 * US).label(AT + 50 * US, 40 * US)
    target.launch(AT + US, 1).kernel(AT + 100 * US, 10 * US, 1)
    target.launch(AT + 51 * US, 2).kernel(AT + 130 * US, 10 * US, 2, stream=8)
    target.launch(AT + 2 * US, 3).kernel(AT + 200 * US, 10 * US, 3)
    assert steps(target, "busy_ns, idle_ns") == [
        {"busy_ns": 20 * US, "idle_ns": 80 * US},
        {"busy_ns": 10 * US, "idle_ns": 0},
    ]


def test_what_ran_before_a_gap_is_named_only_where_it_is_known() -> None:
    target = recording().label(AT, 40 * US)
    target.launch(AT + US, 1).kernel(AT + 10 * US, 10 * US, 1)
    target.launch(AT - 20 * US, 2).kernel(AT + 30 * US, 10 * US, 2)  # launched before every step
    target.launch(AT + 2 * US, 3).kernel(AT + 60 * US, 10 * US, 3)
    target.link()
    assert target.rows("SELECT step_before, step_after FROM gaps ORDER BY start_ns") == [
        {"step_before": 1, "step_after": None}, {"step_before": None, "step_after": 1},
    ]  # fmt: skip


def test_a_window_cuts_activities_and_adds_idle_at_its_ends() -> None:
    target = recording().label(AT, 40 * US)
    target.launch(AT + US, 1).kernel(AT + 10 * US, 10 * US, 1).launch(AT + 2 * US, 2).kernel(AT + 30 * US, 10 * US, 2)
    target.link(window=(AT + 15 * US, AT + 50 * US))
    assert target.rows("SELECT window_start_ns, window_end_ns, busy_ns, idle_ns FROM devices") == [
        {"window_start_ns": AT + 15 * US, "window_end_ns": AT + 50 * US, "busy_ns": 15 * US, "idle_ns": 20 * US}
    ]
    assert target.rows("SELECT busy_ns FROM kernels ORDER BY kernel_id") == [{"busy_ns": 5 * US}, {"busy_ns": 10 * US}]


@pytest.mark.parametrize(
    "frame", ["vllm/v1/worker/gpu_model_runner.py(900): execute_model", "sglang/scheduler.py(1): run_batch"]
)
def test_steps_from_python_frames(frame: str) -> None:
    """Outermost frames of the thread that launches; a frame that launches nothing is no step."""
    target = recording()
    for step in range(3):
        at = AT + step * 100 * US
        target.event(Cat.PYTHON, frame, at, 50 * US).event(Cat.PYTHON, frame, at + US, 40 * US)
        if step < 2:
            kernel(target, at + 5 * US, step + 1)
    target.event(Cat.PYTHON, frame, AT + 3 * US, 30 * US, tid=5)
    assert steps(target, "source, kind, label, host_start_ns") == [
        {"source": "python", "kind": "other", "label": None, "host_start_ns": AT + step * 100 * US} for step in range(2)
    ]


def test_steps_from_graph_launches_and_sampling() -> None:
    """What is launched behind the sampling prepares the next step."""
    target = recording()
    corr = 0
    for step in range(3):
        at = AT + step * 100 * US
        for offset, name, call in ((0, "prepare", None), (5, "gemm", "cudaGraphLaunch"), (20, "argmax_kernel", None)):
            corr += 1
            target.launch(at + offset * US, corr, name=call or "cudaLaunchKernel")
            target.kernel(at + (offset + 3) * US, 2 * US, corr, name=name)
    assert (
        steps(target, "source, n_kernels, n_graph_launches")
        == [{"source": "graph", "n_kernels": 3, "n_graph_launches": 1}] * 3
    )
    first = target.rows("SELECT DISTINCT arg_min(name, start_ns) AS name FROM kernels GROUP BY step_id")
    assert first == [{"name": "prepare"}]


def test_no_evidence_no_steps() -> None:
    target = kernel(recording(), AT, 1)
    assert steps(target, "step_id") == []
    assert target.rows("SELECT step_id, step_link, busy_ns FROM kernels") == [
        {"step_id": None, "step_link": None, "busy_ns": 5 * US}
    ]
