"""The sweep over a timeline against a loop, against the SQL that does the same for awkward timelines, and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording import RUN, Recording

from traces import sweep
from traces.store import named_sql

US = 1_000
BASE = 1_000 * US
STEP_NS = 100

# (step or None, start, duration, device): on a small grid, so that edges meet.
Plan = list[tuple[int | None, int, int, int]]
plans = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 60), st.integers(1, 20), st.integers(0, 1)),
    min_size=1, max_size=14,
)  # fmt: skip
windows = st.one_of(st.none(), st.tuples(st.integers(0, 40), st.integers(1, 60)))
Gap = tuple[int, int, int, int | None, int | None]


def recorded(plan: Plan, window: tuple[int, int] | None) -> Recording:
    """Kernels launched by four labelled steps, or from a thread without any, linked."""
    recording = Recording().file()
    for step in range(4):
        recording.label(BASE + STEP_NS * step, 90)
    for number, (step, start, dur, device) in enumerate(plan):
        launched = BASE - 50 if step is None else BASE + STEP_NS * step + 5
        recording.launch(launched, number + 1, dur=1)
        recording.kernel(BASE + 5 * start, 5 * dur, number + 1, device=device)
    return recording.link(window=None if window is None else (BASE + 5 * window[0], BASE + 5 * (window[0] + window[1])))


def naive_gaps(recording: Recording) -> list[Gap]:
    """(device, start, dur, step before, step after), one activity after the other."""
    found: list[Gap] = []
    for box in recording.rows(
        "SELECT device, window_start_ns AS low, window_end_ns AS high FROM devices ORDER BY device"
    ):
        spans = [
            (
                max(row["start_ns"], box["low"]),
                min(row["start_ns"] + row["dur_ns"], box["high"]),
                row["kernel_id"],
                row["step_id"],
            )
            for row in recording.rows(f"SELECT * FROM kernels WHERE valid AND device = {box['device']}")
        ]
        reached, before = box["low"], None
        for start, end, _, step in sorted((s for s in spans if s[1] > s[0]), key=lambda s: (s[0], -s[1], s[2])):
            if start > reached:
                found.append((box["device"], reached, start - reached, before, step))
            if end > reached:
                reached, before = end, step
        if box["high"] > reached:
            found.append((box["device"], reached, box["high"] - reached, before, None))
    return found


def stored_gaps(recording: Recording) -> list[Gap]:
    rows = recording.rows(
        "SELECT gap_id, device, start_ns, dur_ns, step_before, step_after, cause FROM gaps ORDER BY gap_id"
    )
    assert [row["gap_id"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["cause"] is None for row in rows)
    return [tuple(row[name] for name in ("device", "start_ns", "dur_ns", "step_before", "step_after")) for row in rows]  # type: ignore[misc]


def totals(recording: Recording) -> list[Any]:
    return [
        recording.rows("SELECT step_id, idle_ns, unrecorded_ns FROM steps ORDER BY step_id"),
        recording.rows("SELECT device, busy_ns, idle_ns, unrecorded_ns FROM devices ORDER BY device"),
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans, window=windows, rows=st.integers(1, 5))
def test_gaps_parts_and_idle_time(plan: Plan, window: tuple[int, int] | None, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "BATCH_ROWS", rows)  # what goes on from one piece to the next
        recording = recorded(plan, window)
    recording.assert_exact()
    assert stored_gaps(recording) == naive_gaps(recording)

    swept = totals(recording)
    recording.con.execute("SET VARIABLE run_id = ?", [RUN])
    recording.con.execute(named_sql("step_idle"))
    assert totals(recording) == swept

    parts = "SELECT kernel_id, busy_ns FROM stage.part ORDER BY kernel_id"
    before = recording.rows(parts)
    for table in ("interval", "step_span", "contested"):
        recording.con.execute(f"DROP TABLE IF EXISTS stage.{table}")
    recording.con.execute(named_sql("link_busy"))
    assert recording.rows(parts) == before


def test_a_timeline_out_of_order_is_no_timeline() -> None:
    recording = recorded([(0, 1, 1, 0), (0, 5, 1, 0)], None)
    recording.con.execute("CREATE OR REPLACE TABLE stage.timeline AS SELECT * FROM stage.timeline ORDER BY s DESC")
    with pytest.raises(AssertionError, match="not in order"):
        sweep.Sweep(recording.con, RUN).run()
