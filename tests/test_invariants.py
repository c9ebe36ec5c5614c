"""Random timelines through a real ingest against naive twins: busy, idle, gaps, steps and operator nesting, to the ns."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pytest
import timeline_oracle as oracle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trace_builder import DECODE, US, TraceBuilder

from traces.ingest import IngestOptions, ingest_once

BASE = 1_000 * US
slow_examples = settings(  # an ingest takes half a second: no shrinking, small examples instead
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

# (step, delay between launch and start, duration, stream, device): everything in ns on a small grid, so that edges meet.
Kernels = list[tuple[int, int, int, int, int]]
kernels = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 40), st.integers(7, 9), st.integers(0, 1)),
    min_size=1,
    max_size=14,
)


def ingested(trace: TraceBuilder, folder: Path) -> duckdb.DuckDBPyConnection:
    """The database of a trace, open for reading."""
    target = folder / "run.duckdb"
    target.unlink(missing_ok=True)
    ingest_once([str(trace.write(folder / "trace.json"))], target, IngestOptions())
    return duckdb.connect(str(target), read_only=True)


def timeline(plan: Kernels) -> tuple[TraceBuilder, list[tuple[int, int, int, int]]]:
    """A trace with four labelled steps of 100 ns, and (device, start, end, step) of every kernel."""
    trace = TraceBuilder(rank=0)
    for step in range(4):
        trace.label(BASE + 100 * step, 90, DECODE)
    placed = []
    for number, (step, delay, dur, stream, device) in enumerate(plan):
        launched = BASE + 100 * step + 5
        start = launched + 5 * delay
        trace.launch(launched, number + 1, dur=1).kernel(start, 5 * dur, number + 1, stream=stream, device=device)
        placed.append((device, start, start + 5 * dur, step))
    return trace, placed


@slow_examples
@given(plan=kernels)
def test_devices_steps_and_gaps(plan: Kernels, tmp_path: Path) -> None:
    """Overlapping streams and steps that run late: the union, its complement, and each step's part of it."""
    trace, placed = timeline(plan)
    with ingested(trace, tmp_path) as con:
        device_rows = con.execute(
            "SELECT device, window_start_ns, window_end_ns, busy_ns, idle_ns, unrecorded_ns FROM devices ORDER BY device"
        ).fetchall()
        gap_rows = con.execute(
            "SELECT device, start_ns, start_ns + dur_ns FROM gaps ORDER BY device, start_ns"
        ).fetchall()
        step_rows = con.execute(
            "SELECT seq, busy_ns, idle_ns, unrecorded_ns, n_kernels FROM steps ORDER BY seq"
        ).fetchall()
        loose = con.execute("SELECT count(*) FROM kernels WHERE step_id IS NULL OR step_link <> 'launch'").fetchone()
    by_device: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for device, start, end, step in placed:
        by_device[device].append((start, end, step))
    expected_devices, expected_gaps, owned = [], [], dict.fromkeys(range(4), 0)
    idle: dict[int, int] = dict.fromkeys(range(4), 0)
    for device, spans in sorted(by_device.items()):
        window = min(start for start, _, _ in spans), max(end for _, end, _ in spans)
        free = oracle.gaps([(start, end) for start, end, _ in spans], window)
        busy = oracle.measure((start, end) for start, end, _ in spans)
        expected_devices.append((device, *window, busy, oracle.measure(free), 0))
        expected_gaps += [(device, start, end) for start, end in free]
        for step, ns in oracle.owners(spans).items():
            owned[step] += ns
        for step in {step for _, _, step in spans}:
            own = [(start, end) for start, end, item in spans if item == step]
            inside = min(start for start, _ in own), max(end for _, end in own)
            idle[step] += sum(end - start for start, end in free if start >= inside[0] and end <= inside[1])
    assert device_rows == expected_devices
    assert gap_rows == expected_gaps
    assert loose == (0,)
    counts = {step: sum(item == step for *_, item in placed) for step in range(4)}
    assert step_rows == [
        (step, owned[step] if counts[step] else None, idle[step] if counts[step] else None, 0 if counts[step] else None, counts[step])
        for step in range(4)
    ]  # fmt: skip


# (start, duration, thread): operators that nest, touch and cross.
Ops = list[tuple[int, int]]
crossing = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=12)


@st.composite
def nested(draw: st.DrawFn) -> Ops:
    """Operators as a profiler records them: children inside parents, edges shared now and then."""
    found: Ops = []

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        while depth < 4 and at < end and draw(st.booleans()):
            at = draw(st.integers(at, end - 1))
            stop = draw(st.integers(at + 1, end))
            found.append((at, stop - at))
            fill(at, stop, depth + 1)
            at = stop

    fill(0, 40, 0)
    return found or [(0, 1)]


def cpu_rows(ops: Ops, folder: Path) -> list[tuple[Any, ...]]:
    trace = TraceBuilder(rank=0).label(BASE, 100, DECODE)
    for number, (start, dur) in enumerate(ops):
        trace.op(f"op{number}", BASE + start, dur)
    with ingested(trace, folder) as con:
        rows = con.execute(
            "SELECT start_ns, start_ns + dur_ns, name, kind, step_link FROM kernels ORDER BY start_ns"
        ).fetchall()
        totals = con.execute("SELECT busy_ns, idle_ns, window_end_ns - window_start_ns FROM devices").fetchone()
    assert {row[3:] for row in rows} == {("cpu_op", "time")}
    spans = [(start, start + dur) for start, dur in ops]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    busy = oracle.measure(spans)
    assert totals == (busy, last - first - busy, last - first)
    return [row[:3] for row in rows]


def innermost(ops: Ops) -> list[tuple[int, int, set[str]]]:
    """Segments with the names that may own them: of operators with equal edges either is right."""
    spans = [(BASE + start, BASE + start + dur, number) for number, (start, dur) in enumerate(ops)]
    return [
        (start, end, {f"op{other}" for left, right, other in spans if (left, right) == spans[number][:2]})
        for start, end, number in oracle.segments(spans)
    ]


def assert_segments(rows: list[tuple[Any, ...]], expected: list[tuple[int, int, set[str]]]) -> None:
    """Every ns of `expected` has an owner among its names in `rows`, and nothing else has one."""
    owned = {at: name for start, end, name in rows for at in range(start, end)}
    assert len(owned) == sum(end - start for start, end, _ in rows)  # rows never overlap
    wanted = {at: names for start, end, names in expected for at in range(start, end)}
    assert owned.keys() == wanted.keys()
    assert [(at, name) for at, name in owned.items() if name not in wanted[at]] == []


@slow_examples
@given(ops=nested())
def test_nested_operators(ops: Ops, tmp_path: Path) -> None:
    assert_segments(cpu_rows(ops, tmp_path), innermost(ops))


@slow_examples
@given(ops=crossing)
def test_operators_that_cross(ops: Ops, tmp_path: Path) -> None:
    """Torn files and rounding: of all that cover a moment, the one that began last has it."""
    assert_segments(cpu_rows(ops, tmp_path), innermost(ops))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10), (5, 15)], [(0, 5, 0), (5, 15, 1)]),
        ([(0, 10), (1, 20), (2, 20)], [(0, 1, 0), (1, 2, 1), (2, 20, 2)]),
    ],
)
def test_the_oracle_itself(spans: list[tuple[int, int]], expected: list[tuple[int, int, int]]) -> None:
    found = oracle.segments([(start, end, number) for number, (start, end) in enumerate(spans)])
    merged: list[tuple[int, int, int]] = []
    for start, end, number in found:
        if merged and merged[-1][1] == start and merged[-1][2] == number:
            merged[-1] = (merged[-1][0], end, number)
        else:
            merged.append((start, end, number))
    assert merged == expected
