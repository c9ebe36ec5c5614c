"""Causes of idle time on random timelines of several streams and devices, against a naive twin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import timeline_oracle as oracle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from idle_recording import START, US, again, at, caused, recorded

from traces.readers.base import Cat

# a launch: (pause before it, its call, delay of its kernel, its length, stream, device), all in µs
Launch = tuple[int, int, int, int, int, int]
launches = st.tuples(
    st.integers(0, 30), st.integers(1, 4), st.integers(0, 60), st.integers(1, 40), st.integers(7, 8), st.integers(0, 1)
)
# an iteration: pause before it, preparing, launches inside the label, a wait, launches behind the label
iterations = st.tuples(
    st.integers(0, 60),
    st.integers(0, 20),
    st.lists(launches, max_size=4),
    st.integers(0, 30),
    st.lists(launches, max_size=2),
)


class Timeline:
    """Iterations laid out on one thread, and the naive verdict on every µs of idle time."""

    def __init__(self, plan: list[Any], *, labelled: bool) -> None:
        self.recording, self.labelled = recorded(), labelled
        self.calls: list[tuple[int, int, str]] = []
        self.ranges: list[tuple[int, int, str]] = []
        self.kernels: list[tuple[int, int, int, int, int]] = []  # device, start, end, call's start, call's end
        self.steps: list[list[int]] = []
        self.now = 0
        for pause, prepare, inside, wait, behind in plan:
            self.now += pause
            begin = self.now
            self.ranged("gpu_model_runner: preprocess", prepare)
            for item in inside:
                self.launch(item)
            if wait:
                self.call("cudaStreamSynchronize", wait)
                self.recording.event(Cat.RUNTIME, "cudaStreamSynchronize", at(self.now - wait), wait * US)
            self.now += 1
            if labelled:
                self.recording.label(at(begin), (self.now - begin) * US)
                self.ranges.append((begin, self.now, "label"))
                self.steps.append([begin, self.now])
            for item in behind:
                self.launch(item)

    def ranged(self, name: str, dur: int) -> None:
        if dur:
            self.recording.event(Cat.ANNOTATION, name, at(self.now), dur * US)
            self.ranges.append((self.now, self.now + dur, "prepare"))
            self.now += dur

    def call(self, name: str, dur: int) -> None:
        self.calls.append((self.now, self.now + dur, name))
        self.now += dur

    def launch(self, item: Launch) -> None:
        pause, dur, delay, length, stream, device = item
        self.now += pause
        start, corr = self.now, len(self.kernels) + 1
        self.call("cudaLaunchKernel", dur)
        self.recording.launch(at(start), corr, dur=dur * US)
        self.recording.kernel(at(start + delay), length * US, corr, stream=stream, device=device)
        self.kernels.append((device, start + delay, start + delay + length, start, start + dur))

    def expected(self) -> list[tuple[int, int, str]]:
        """(device, µs, cause) of every idle µs."""
        found = []
        for device in sorted({row[0] for row in self.kernels}):
            spans = [(start, end) for owner, start, end, *_ in self.kernels if owner == device]
            window = min(start for start, _ in spans), max(end for _, end in spans)
            for begin, end in oracle.gaps(spans, window):
                # of several that start at once, the first in the file
                *_, called, returned = next(row for row in self.kernels if row[0] == device and row[1] == end)
                late = min(max(returned, begin), end)
                for now in range(begin, end):
                    if now < late:
                        found.append((device, now, self.on_thread(now, called)))
                    else:
                        found.append((device, now, "launch_latency" if end - late < 15 else "dependency"))
        return found

    def on_thread(self, now: int, next_launch: int) -> str:
        call = next((name for start, end, name in self.calls if start <= now < end), None)
        if call == "cudaStreamSynchronize":
            return "sync"
        around = [item for item in self.ranges if item[0] <= now < item[1]]
        if any(kind == "prepare" for *_, kind in around):
            return "host_prepare"
        begun = [index for index, (start, _) in enumerate(self.steps) if start <= now]
        own = self.launched_in(begun[-1]) if begun else []
        if around:
            if not [start for start, _ in own if start <= now]:
                return "host_prepare"
            return "host_launch" if next_launch < around[0][1] else "sampling_output"
        if own and now < own[-1][1]:
            return "sampling_output"
        if call is not None:
            return "host_launch"
        events = [item[:2] for item in (*self.calls, *self.ranges)]
        if not min(start for start, _ in events) <= now <= max(end for _, end in events):
            return "unknown"
        return "host_other" if begun else "host_launch"

    def launched_in(self, index: int) -> list[tuple[int, int]]:
        """Launch calls in the host window of a step, which ends where the next one begins."""
        start = self.steps[index][0]
        end = self.steps[index + 1][0] if index + 1 < len(self.steps) else self.now + 1
        return [
            (begin, stop) for begin, stop, name in self.calls if name == "cudaLaunchKernel" and start <= begin < end
        ]


@settings(
    max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(plan=st.lists(iterations, min_size=1, max_size=3), labelled=st.booleans())
def test_causes_equal_a_naive_reading(plan: list[Any], labelled: bool) -> None:
    timeline = Timeline(plan, labelled=labelled)
    if not timeline.kernels:
        return
    caused(timeline.recording)
    rows = timeline.recording.rows("SELECT device, start_ns, dur_ns, cause FROM gaps ORDER BY device, start_ns")
    found = [
        (row["device"], us, row["cause"])
        for row in rows
        for us in range((row["start_ns"] - START) // US, (row["start_ns"] + row["dur_ns"] - START) // US)
    ]
    assert found == timeline.expected()
    touching = [
        (a, b) for a, b in pairwise(rows) if a["device"] == b["device"] and a["start_ns"] + a["dur_ns"] == b["start_ns"]
    ]
    assert all(a["cause"] != b["cause"] for a, b in touching), "a gap is cut only where its cause changes"
    again(timeline.recording)
    query = "SELECT device, start_ns, dur_ns, cause FROM gaps ORDER BY device, start_ns"
    assert timeline.recording.rows(query) == rows
