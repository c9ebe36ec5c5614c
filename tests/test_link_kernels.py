"""Which step an activity belongs to: the one that launched it, and marked guesses where no launch was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from recording import DECODE, PREFILL, Recording

from traces.readers.base import Cat

US = 1_000
AT = 1_000 * US


def recording(*, rank: int = 0) -> Recording:
    return Recording().file(rank=rank, distributedInfo={"rank": rank, "world_size": 1})


def steps(target: Recording, count: int = 3, *, every: int = 100 * US, **thread: int) -> Recording:
    """Labels of half the distance of their starts."""
    for step in range(count):
        target.label(AT + step * every, every // 2, (DECODE, PREFILL)[step % 2], **thread)
    return target


def links(target: Recording) -> list[tuple[Any, ...]]:
    """(name, seq of the step, step_link, launched) of every activity in order of time."""
    rows = target.link().rows(
        "SELECT k.name, s.seq, k.step_link, k.launch_id IS NOT NULL AS launched FROM kernels AS k "
        "LEFT JOIN steps AS s USING (run_id, step_id) ORDER BY k.kernel_id"
    )
    return [tuple(row.values()) for row in rows]


def test_an_activity_belongs_to_the_step_that_launched_it_not_to_where_it_ran() -> None:
    target = steps(recording())
    target.launch(AT + US, 1).kernel(AT + 220 * US, 5 * US, 1, name="late")
    target.launch(AT + 201 * US, 2).kernel(AT + 230 * US, 5 * US, 2, name="prompt")
    assert links(target) == [("late", 0, "launch", True), ("prompt", 2, "launch", True)]


def test_what_is_launched_behind_a_label_is_its_step_s_until_the_next_label() -> None:
    target = steps(recording())
    target.launch(AT + 99 * US, 1).kernel(AT + 150 * US, US, 1, name="sampling")
    target.launch(AT - US, 2).kernel(AT + 10 * US, US, 2, name="before")
    assert links(target) == [("before", None, None, True), ("sampling", 0, "launch", True)]


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_kernels_of_a_graph_share_its_launch(call: str) -> None:
    target = steps(recording(), 2)
    target.launch(AT + US, 5, name=call)
    for number in range(4):
        target.kernel(AT + (10 + 2 * number) * US, US, 5, name=f"k{number}")
    assert links(target) == [(f"k{number}", 0, "graph", True) for number in range(4)]
    assert target.rows("SELECT n_kernels, is_graph, name FROM launches") == [
        {"n_kernels": 4, "is_graph": True, "name": call}
    ]
    assert target.rows("SELECT graph_mode, n_graph_launches, n_launches_without_kernel FROM steps ORDER BY seq") == [
        {"graph_mode": "full", "n_graph_launches": 1, "n_launches_without_kernel": 0},
        {"graph_mode": None, "n_graph_launches": 0, "n_launches_without_kernel": 0},
    ]


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel",
             "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "cudaLaunchCooperativeKernel", "cudaMemcpyAsync"],
)  # fmt: skip
def test_calls_that_launch(call: str) -> None:
    target = steps(recording()).launch(AT + 101 * US, 1, name=call).kernel(AT + 110 * US, US, 1)
    assert links(target) == [("gemm", 1, "launch", True)]


def test_many_graphs_in_a_step_are_piecewise() -> None:
    target = steps(recording(), 1)
    for number in range(6):
        target.launch(AT + number * US, number + 1, name="cudaGraphLaunch").kernel(
            AT + (20 + 2 * number) * US, US, number + 1
        )
        target.launch(AT + (10 + number) * US, 100 + number).kernel(
            AT + (21 + 2 * number) * US, US, 100 + number, stream=8
        )
    assert target.link().one("SELECT graph_mode FROM steps") == "piecewise"


def test_a_graph_launch_without_kernels_is_kept_and_counted() -> None:
    target = steps(recording(), 1).launch(AT + US, 1, name="cudaGraphLaunch")
    target.launch(AT + 2 * US, 2).kernel(AT + 20 * US, US, 2)
    assert target.link().rows("SELECT n_launches, n_graph_launches, n_launches_without_kernel FROM steps") == [
        {"n_launches": 2, "n_graph_launches": 1, "n_launches_without_kernel": 1}
    ]


def test_a_driver_call_inside_a_runtime_call_is_one_launch() -> None:
    target = steps(recording(), 1).launch(AT + US, 1, dur=10 * US)
    target.event(Cat.DRIVER, "cuLaunchKernel", AT + 3 * US, 2 * US, corr=1).kernel(AT + 20 * US, US, 1)
    assert links(target) == [("gemm", 0, "launch", True)]
    assert target.rows("SELECT name, dur_ns FROM launches") == [{"name": "cudaLaunchKernel", "dur_ns": 10 * US}]


def test_a_thread_without_labels_launches_for_the_step_of_that_time() -> None:
    target = steps(recording()).launch(AT + 120 * US, 1, tid=99).kernel(AT + 130 * US, US, 1)
    assert links(target) == [("gemm", 1, "launch", True)]


def test_a_thread_with_labels_launches_for_its_own_steps() -> None:
    """Two workers as threads of one process: each has its own steps."""
    target = steps(recording(), 2, tid=1)
    target.label(AT + 30 * US, 40 * US, PREFILL, tid=2)
    target.launch(AT + 40 * US, 1, tid=1).kernel(AT + 41 * US, US, 1, name="one")
    target.launch(AT + 42 * US, 2, tid=2).kernel(AT + 43 * US, US, 2, name="two")
    target.link()
    kinds = target.rows(
        "SELECT k.name, s.kind FROM kernels AS k JOIN steps AS s USING (run_id, step_id) ORDER BY k.name"
    )
    assert kinds == [{"name": "one", "kind": "decode"}, {"name": "two", "kind": "prefill"}]


def test_without_a_launch_neighbours_on_the_stream_decide_then_time() -> None:
    target = steps(recording())
    target.launch(AT + US, 1).kernel(AT + 10 * US, US, 1, name="a")
    target.kernel(AT + 12 * US, US, name="between")
    target.launch(AT + 2 * US, 2).kernel(AT + 120 * US, US, 2, name="b")  # late: beyond the next label
    target.kernel(AT + 110 * US, US, name="between, later")
    target.kernel(AT + 115 * US, US, name="other stream", stream=9)
    target.launch(AT + 201 * US, 3).kernel(AT + 210 * US, US, 3, name="c")
    target.kernel(AT + 150 * US, US, name="between two steps")
    target.kernel(AT - 50 * US, US, name="before all")
    assert links(target) == [
        ("before all", None, None, False),
        ("a", 0, "launch", True),
        ("between", 0, "stream_order", False),
        ("between, later", 0, "stream_order", False),
        ("other stream", 1, "time", False),
        ("b", 0, "launch", True),
        ("between two steps", 1, "time", False),
        ("c", 2, "launch", True),
    ]


def test_ranks_do_not_mix() -> None:
    """Both ranks use the same correlations, process and thread ids."""
    target = Recording()
    for rank in range(2):
        target.file(rank, rank=rank, distributedInfo={"rank": rank, "world_size": 2})
        for step in range(2):
            at = AT + step * 100 * US + rank * 30 * US
            target.label(at, 50 * US, src=rank).launch(at + US, step + 1, src=rank)
            target.kernel(at + 10 * US, US, step + 1, name=f"r{rank}s{step}", src=rank)
    target.link()
    found = target.rows(
        "SELECT k.name, k.rank, s.rank AS step_rank, s.seq FROM kernels AS k JOIN steps AS s USING (run_id, step_id) ORDER BY name"
    )
    assert found == [
        {"name": f"r{rank}s{step}", "rank": rank, "step_rank": rank, "seq": step}
        for rank in range(2)
        for step in range(2)
    ]


Launch = tuple[int, int, int]  # (launched at, starts so much later, stream); launched at 0: no launch was recorded
plan = st.lists(st.tuples(st.integers(0, 45), st.integers(0, 30), st.integers(7, 8)), min_size=1, max_size=12)


def naive(launches: list[Launch]) -> list[tuple[int | None, str | None]]:
    """Step and link of every kernel, with labels at 10, 20, 30 and 40, the last one 5 long; nothing is launched later."""
    ends = max([45, *(at for at, _, _ in launches)])  # the last window ends with the thread's last record

    def step_at(at: int) -> int | None:
        return None if at < 10 or at >= ends else min(at // 10 - 1, 3)

    starts = [50 + 2 * (number if at == 0 else 0) + at + later for number, (at, later, _) in enumerate(launches)]
    launched = [step_at(at) if at else None for at, _, _ in launches]
    found: list[tuple[int | None, str | None]] = []
    for number, (at, _, stream) in enumerate(launches):
        if at:
            found.append((launched[number], "launch" if launched[number] is not None else None))
            continue
        peers = [
            (starts[i], launched[i]) for i, item in enumerate(launches) if item[2] == stream and launched[i] is not None
        ]
        before = max((peer for peer in peers if peer[0] <= starts[number]), key=lambda peer: peer[0], default=None)
        after = min((peer for peer in peers if peer[0] >= starts[number]), key=lambda peer: peer[0], default=None)
        if before and after and before[1] == after[1]:
            found.append((before[1], "stream_order"))
        else:
            found.append((None, None))  # all kernels run behind the last window
    return found


@settings(
    max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(launches=plan)
def test_linking_is_that_of_a_naive_loop(launches: list[Launch]) -> None:
    starts = [50 + 2 * (number if at == 0 else 0) + at + later for number, (at, later, _) in enumerate(launches)]
    by_stream = [(start, launches[number][2]) for number, start in enumerate(starts)]
    if len(set(by_stream)) < len(by_stream):  # which of two at one moment is the neighbour is not defined
        return
    target = recording()
    for step in range(4):
        target.label(AT + 10 * (step + 1), 5)
    for number, (at, _, stream) in enumerate(launches):
        if at:
            target.launch(AT + at, number + 1, dur=0)
        target.kernel(AT + starts[number], 1, number + 1 if at else None, name=str(number), stream=stream)
    found = {int(name): (seq, link) for name, seq, link, _ in links(target)}
    assert [found[number] for number in range(len(launches))] == naive(launches)
