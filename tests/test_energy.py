"""Energy: the planted truth to a percent, parts that sum to the whole, requests that sum to steps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from energy_plant import LOW, RUN, T0, Plant, S, counter, ns
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import energy
from analyzers.energy_curve import EnergyCurve, energy_curve
from analyzers.energy_devices import Sensed, matched, sensed_devices
from analyzers.energy_parts import energy_parts
from analyzers.energy_spans import device_energy
from analyzers.energy_states import lowest_second_w, mean_power_w, state_rows

DEEP_W, IDLE_W, ACTIVE_W = 35.0, 105.0, 300.0
FACTS = {"counter": ("energy_j",), "power": ("power_w",), "power_instant": ("power_instant_w", "power_w")}


def power_at(t: float) -> float:
    """5 s without a program, then 8 s of work and 12 s of waiting in turn."""
    return DEEP_W if t < 5 else ACTIVE_W if (t - 5) % 20 < 8 else IDLE_W


def sensors_at(t: float, *columns: str) -> dict[str, Any]:
    busy = power_at(t) == ACTIVE_W
    values = {"energy_j": counter(power_at, t), "power_w": power_at(t), "power_instant_w": power_at(t)}
    activity = {"sm_active": 0.9, "dram_active": 0.4} if busy else {}
    return {**LOW, **activity, "resident": t >= 5, **{name: values[name] for name in columns}}


def curve_of(plant: Plant) -> EnergyCurve:
    (device,) = sensed_devices(plant.con, RUN)
    assert device.curve is not None
    return device.curve


@pytest.mark.parametrize("source", FACTS)
def test_the_planted_energy_of_every_state(source: str) -> None:
    plant = Plant().sampled(65, lambda t: sensors_at(t, *FACTS[source]))
    energy.fill(plant.con, RUN)
    devices = sensed_devices(plant.con, RUN)
    assert curve_of(plant).source == source
    truth = {"active": 24 * ACTIVE_W, "execution_idle": 36 * IDLE_W, "deep_idle": 5 * DEEP_W}
    rows = {row["state"]: row for row in state_rows(devices, 0)}
    for state, joules in truth.items():
        assert rows[state]["energy_j"] == pytest.approx(
            joules, rel=1e-9 if source == "counter" else 0.01 if state != "deep_idle" else 0.08
        )
    assert sum(row["energy_j"] for row in rows.values()) == pytest.approx(
        sum(truth.values()), rel=1e-9 if source == "counter" else 0.01
    )
    assert {state: rows[state]["time_ns"] for state in truth} == {
        "active": 24 * S,
        "execution_idle": 36 * S,
        "deep_idle": 5 * S,
    }
    for minimum in (0.0, 5.0):
        (total,) = plant.rows(f"SELECT sum(energy_j) FROM execution_idle WHERE min_duration_s = {minimum}")
        assert total[0] == pytest.approx(36 * IDLE_W, rel=1e-9 if source == "counter" else 0.01)


def test_the_counter_is_taken_over_power_and_a_stuck_one_is_not() -> None:
    def values(t: float, joules: float) -> dict[str, Any]:
        return {"power_w": 100.0, "energy_j": joules}

    assert curve_of(Plant().sampled(10, lambda t: values(t, 90 * t))).total_j == pytest.approx(900)
    assert curve_of(Plant().sampled(10, lambda t: values(t, 7.0))).total_j == pytest.approx(1000)
    # a counter that is there for a tenth of the time says less than power does
    late = Plant().sampled(10, lambda t: {"power_w": 100.0, "energy_j": 90 * t if t > 9 else None})
    assert (curve_of(late).source, curve_of(late).total_j) == ("power", pytest.approx(1000))


def test_a_counter_that_moves_slower_than_it_is_read() -> None:
    moves = Plant().sampled(10, lambda t: {"energy_j": 100.0 * math.floor(t * 2 + 1e-9) / 2})
    curve = curve_of(moves)
    assert (curve.period_ns, curve.total_j) == (S // 2, pytest.approx(1000))
    assert curve.span(ns(2.1), ns(2.4)) == (pytest.approx(30.0), pytest.approx(0.3 * S))  # not 0


def test_a_counter_that_moves_between_two_readings_close_together() -> None:
    rows = [
        {"t": 0.0, "energy_j": 0.0},
        {"t": 0.09999, "energy_j": 0.0},
        {"t": 0.1, "energy_j": 70.0},
        {"t": 0.2, "energy_j": 140.0},
    ]
    curve = curve_of(Plant().samples(rows))
    assert (curve.total_j, curve.total_ns) == (140, S // 5)
    assert curve.span(ns(0), ns(0.05))[0] == pytest.approx(35)


def test_a_counter_that_runs_back_or_jumps_is_not_counted_there() -> None:
    rows = [{"t": float(t), "energy_j": 100.0 * t} for t in range(5)]
    back = Plant().samples([*rows, *[{"t": float(t), "energy_j": 100.0 * (t - 5)} for t in range(5, 9)]])
    assert (curve_of(back).total_j, curve_of(back).total_ns) == (pytest.approx(700), 7 * S)
    jump = Plant().samples([*rows, *[{"t": float(t), "energy_j": 1e12 + 100.0 * t} for t in range(5, 9)]])
    assert (curve_of(jump).total_j, curve_of(jump).total_ns) == (pytest.approx(700), 7 * S)


@pytest.mark.parametrize("reading", [math.nan, math.inf, -5.0, 1e30])
def test_a_reading_that_is_none_is_left_out(reading: float) -> None:
    plant = Plant().samples({"t": t / 2, "power_w": reading if t == 5 else 100.0} for t in range(21))
    assert (curve_of(plant).total_j, curve_of(plant).total_ns) == (pytest.approx(1000), 10 * S)


def test_without_power_there_is_time_but_no_energy() -> None:
    plant = Plant().sampled(10, lambda t: sensors_at(t)).window(0, 10).kernel(5, 6, 1).step(1, "decode", 5, 6)
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT energy_j FROM steps") == [(None,)]
    rows = state_rows(sensed_devices(plant.con, RUN), 0)
    assert {row["energy_j"] for row in rows} == {None}
    assert mean_power_w(sensed_devices(plant.con, RUN), "active") is None
    assert lowest_second_w(sensed_devices(plant.con, RUN)) is None


def worked(**telemetry: Any) -> Plant:
    """10 s of samples at 300 W and 100 W in turn each second; steps of one second with two requests each."""
    plant = Plant().sampled(10, lambda t: {"energy_j": counter(swing, t), **LOW, "resident": True, **telemetry})
    plant.window(1, 9)
    for number, kind, prefill in ((1, "prefill", 1.0), (2, "mixed", 0.25), (3, "decode", 0.0)):
        start = 2.0 * number
        plant.kernel(start, start + 1, number, prefill=prefill).step(number, kind, start, start + 1)
        plant.share(number, "a", 0.25, phase="prefill" if kind == "prefill" else "decode").share(number, "b", 0.75)
    plant.gap(1, 2, "no_work").gap(3, 4, None).gap(5, 6, "unrecorded").gap(7, 9, "no_work")
    return plant.request("a", 1, 8, session_id="s").request("b", 1, 8, session_id="s").request("c", 1, 8)


def swing(t: float) -> float:
    return 300.0 if int(t + 1e-9) % 2 == 0 else 100.0


def test_steps_requests_and_parts_of_a_known_run() -> None:
    plant = worked()
    energy.fill(plant.con, RUN)
    assert [row[0] for row in plant.rows("SELECT energy_j FROM steps ORDER BY step_id")] == pytest.approx([300] * 3)
    shares = plant.rows("SELECT request_id, energy_j FROM step_requests ORDER BY step_id, request_id")
    assert [value for _, value in shares] == pytest.approx([75, 225] * 3)
    assert dict(plant.rows("SELECT request_id, energy_j FROM requests")) == {
        "a": pytest.approx(225), "b": pytest.approx(675), "c": None,
    }  # fmt: skip
    devices = sensed_devices(plant.con, RUN)
    parts = energy_parts(devices, energy.attribute(plant.con, RUN, devices), {})
    assert {(row["part"], row["cause"]): (row["time_ns"], round(row["energy_j"], 6)) for row in parts} == {
        ("prefill", None): (1.25 * S, 375), ("decode", None): (1.75 * S, 525), ("idle", "no_work"): (3 * S, 500),
        ("idle", "unknown"): (S, 100), ("unrecorded", None): (S, 100), ("outside", None): (2 * S, 400),
    }  # fmt: skip
    assert sum(row["energy_j"] for row in parts) == pytest.approx(curve_of(plant).total_j, rel=1e-12)
    assert sum(row["share"] for row in parts) == pytest.approx(1, rel=1e-12)


def test_a_sensor_slower_than_the_steps_gives_sums_only() -> None:
    plant = Plant().samples({"t": 2.0 * i, "energy_j": 400.0 * i, "resident": True} for i in range(6)).window(0, 10)
    for number in range(8):
        plant.kernel(1 + number, 2 + number, number, prefill=0.0).step(number, "decode", 1 + number, 2 + number)
        plant.share(number, "long", 0.5).share(number, f"short{number}", 0.5)
    for name in ("long", *(f"short{number}" for number in range(8))):
        plant.request(name, 0, 10)
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT count(*), count(energy_j) FROM steps") == [(8, 0)]
    assert plant.rows("SELECT count(energy_j) FROM step_requests") == [(0,)]
    assert plant.rows("SELECT request_id, energy_j FROM requests WHERE energy_j IS NOT NULL") == [
        ("long", pytest.approx(800))
    ]
    ((total, covered),) = plant.rows("SELECT sum(energy_j), count(*) FILTER (WHERE covered) FROM energy_step")
    assert (total, covered) == (pytest.approx(1600), 8)
    assert plant.rows("SELECT DISTINCT why FROM energy_request WHERE request_id <> 'long'") == [("sensor slower",)]


def test_power_readings_that_stand_still_say_how_slow_the_sensor_is() -> None:
    plant = Plant().sampled(10, lambda t: {"power_w": 100.0, "resident": True}).window(0, 10)
    plant.row("sensors", rank=0, device=0, source="nvml", power_period_ns=S).kernel(1, 1.5, 1).step(1, "decode", 1, 1.5)
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT energy_j FROM steps") == [(None,)]
    plant.con.execute("UPDATE sensors SET power_period_ns = 20000000")
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT energy_j FROM steps") == [(pytest.approx(50),)]


def test_what_the_sensor_does_not_cover_has_no_energy() -> None:
    plant = worked()
    plant.con.execute("DELETE FROM telemetry WHERE ts_ns BETWEEN ? AND ?", [ns(3.5), ns(6.5)])
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT step_id FROM steps WHERE energy_j IS NOT NULL") == [(1,)]
    assert plant.rows("SELECT count(energy_j) FROM requests") == [(0,)]
    assert plant.rows("SELECT DISTINCT why FROM energy_request") == [("not covered",)]
    (_, parts), whole = parts_of(plant), curve_of(plant).total_j
    assert sum(row["energy_j"] for row in parts) == pytest.approx(whole, rel=1e-12)


def test_a_slow_power_sensor_goes_on_where_nothing_else_was_read() -> None:
    plant = Plant().samples({"t": 15.0 * i, "power_w": 100.0} for i in range(5))
    plant.samples({"t": i / 10 + 0.05, "sm_active": 0.9} for i in range(600) if not 200 <= i < 300)
    devices = sensed_devices(plant.con, RUN)
    rows = {row["state"]: row for row in state_rows(devices, 0)}
    assert rows["unsampled"]["time_ns"] == pytest.approx(10 * S, rel=0.02)
    assert rows["unsampled"]["energy_j"] == pytest.approx(1000, rel=0.02)
    assert sum(row["energy_j"] for row in rows.values()) == pytest.approx(curve_of(plant).total_j, rel=1e-12)


def test_what_health_withholds_is_not_divided() -> None:
    plant = worked()
    devices = sensed_devices(plant.con, RUN)
    found = energy.attribute(plant.con, RUN, devices)
    for reasons, parts in (
        ({"devices.idle_ns": "w"}, {"prefill": 375, "decode": 525, "doubtful": 700, "outside": 400}),
        ({"devices": "w"}, {"doubtful": 1600, "outside": 400}),
    ):
        rows = energy_parts(devices, found, reasons)
        assert {row["part"]: round(row["energy_j"], 6) for row in rows} == parts


def test_time_that_could_not_be_divided_is_nobodys() -> None:
    plant = worked()
    plant.con.execute("UPDATE step_requests SET device_ns = NULL WHERE step_id = 2 AND request_id = 'a'")
    plant.con.execute("UPDATE kernels SET prefill_ns = NULL, decode_ns = NULL WHERE step_id = 2")
    energy.fill(plant.con, RUN)
    assert dict(plant.rows("SELECT request_id, energy_j FROM requests")) == {
        "a": None,
        "b": pytest.approx(675),
        "c": None,
    }
    assert plant.rows("SELECT why FROM energy_request WHERE request_id = 'a'") == [("not divided",)]
    _, parts = parts_of(plant)
    assert {row["part"]: row["energy_j"] for row in parts}["not split"] == pytest.approx(300)


def parts_of(plant: Plant) -> tuple[list[Sensed], list[dict[str, Any]]]:
    devices = sensed_devices(plant.con, RUN)
    return devices, energy_parts(devices, energy.attribute(plant.con, RUN, devices), {})


def test_ranks_each_have_their_device() -> None:
    plant = Plant()
    for device, watts in ((0, 100.0), (1, 200.0)):
        plant.sampled(10, lambda t, watts=watts: {"power_w": watts}, rank=0, device=device)
        plant.window(0, 10, rank=device, device=device).kernel(2, 4, device, rank=device, device=device)
        plant.step(device, "decode", 2, 4, rank=device).share(device, "a", 2.0, rank=device)
    plant.request("a", 0, 10)
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT energy_j FROM steps ORDER BY rank") == [(pytest.approx(200),), (pytest.approx(400),)]
    assert plant.rows("SELECT energy_j FROM requests") == [(pytest.approx(600),)]


@pytest.mark.parametrize(
    ("keys", "places", "expected"),
    [
        ([(0, 0), (0, 1)], [(0, 0), (1, 1)], {(0, 0): (0, 0), (0, 1): (1, 1)}),
        ([(None, 0), (None, 1)], [(0, 0), (1, 1)], {(None, 0): (0, 0), (None, 1): (1, 1)}),
        ([(0, 0), (0, 1)], [(0, 0), (1, 0)], {(0, 0): (0, 0)}),  # which of the two the second rank has cannot be told
        ([(0, 3)], [(0, 0)], {(0, 3): (0, 0)}),  # one device on either side
        ([(0, 3), (0, 4)], [(0, 0)], {}),
        ([(None, None)], [(0, 0)], {(None, None): (0, 0)}),
        ([], [(0, 0)], {}),
    ],
)
def test_which_device_a_sensor_belongs_to(keys: list[Any], places: list[Any], expected: dict[Any, Any]) -> None:
    rows = [{"rank": rank, "device": device, "name": None} for rank, device in places]
    found = matched(keys, rows, {})
    assert {key: (place["rank"], place["device"]) for key, place in found.items()} == expected


def test_one_device_of_another_name_is_another_device() -> None:
    places = [{"rank": 0, "device": 0, "name": "A"}]
    assert matched([(0, 1)], places, {(0, 1): "B"}) == {}
    assert matched([(0, 1)], places, {(0, 1): "A"}) == {(0, 1): places[0]}


# (start, length, step or None, prefill share) in tenths of a second; overlaps happen.
pieces = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 25), st.sampled_from([None, 0, 1, 2]), st.sampled_from([0.0, 0.5, 1.0, None])),
    min_size=1, max_size=10,
)  # fmt: skip
powers = st.lists(st.one_of(st.none(), st.integers(0, 400)), min_size=90, max_size=90)


@pytest.fixture(scope="module")
def bench() -> Plant:
    """A database that examples take in turn."""
    return Plant()


@settings(max_examples=60, deadline=None)
@given(plan=pieces, watts=powers, by_counter=st.booleans())
def test_parts_sum_to_the_whole(
    bench: Plant, plan: list[tuple[int, int, int | None, float | None]], watts: list[int | None], by_counter: bool
) -> None:
    """Random overlapping activities, random power with holes: work by step, idle and the rest against a naive twin."""
    plant = bench.clear()
    total, rows = 0.0, []
    for i, value in enumerate(watts):
        rows.append(
            {
                "t": i / 10,
                ("energy_j" if by_counter else "power_w"): None if value is None else total if by_counter else value,
            }
        )
        total += 0 if value is None else value * 0.1
    plant.samples(rows)
    owner = owners(plan)
    first, last = min(owner), max(owner) + 1
    plant.window(first / 10, last / 10)
    for index, (start, length, step, prefill) in enumerate(plan):
        busy = sum(1 for who in owner.values() if who == index)
        plant.kernel(start / 10, (start + length) / 10, step, prefill=prefill, busy=busy / 10)
    for tick in range(first, last):
        if tick not in owner:
            plant.gap(tick / 10, (tick + 1) / 10, "no_work" if tick % 2 else None)
    devices = sensed_devices(plant.con, RUN)
    (device,) = devices
    if device.curve is None:
        return
    assert device.window is not None
    found = device_energy(plant.con, RUN, device.window, device.curve)
    naive = {tick: naive_energy(rows, tick / 10, (tick + 1) / 10, by_counter=by_counter) for tick in range(first, last)}
    assert found.work["energy_j"].sum() == pytest.approx(sum(naive[tick] for tick in owner), abs=1e-6)
    assert found.idle["energy_j"].sum() == pytest.approx(sum(naive[t] for t in naive if t not in owner), abs=1e-6)
    assert found.rest_j == pytest.approx(0, abs=1e-6)
    assert found.work["busy_ns"].sum() == len(owner) * S // 10
    parts = energy_parts(devices, {device.key: found}, {})
    assert sum(row["energy_j"] for row in parts) == pytest.approx(device.curve.total_j, abs=1e-6)
    states = state_rows(devices, 0)
    inside = device.curve.total_j
    assert sum(row["energy_j"] for row in states) == pytest.approx(inside, abs=1e-6)
    if all(end <= start for (_, end), (start, _) in pairwise(spans(plan))):  # no overlap: exact
        by_step = {row["step_id"]: row["energy_j"] for row in found.work.to_dicts()}
        for step, joules in by_step.items():
            mine = [tick for tick, who in owner.items() if plan[who][2] == step]
            assert joules == pytest.approx(sum(naive[tick] for tick in mine), abs=1e-6)


def spans(plan: list[tuple[int, int, int | None, float | None]]) -> list[tuple[int, int]]:
    return sorted((start, start + length) for start, length, _, _ in plan)


def owners(plan: list[tuple[int, int, int | None, float | None]]) -> dict[int, int]:
    """Whose each tenth of a second is: the earlier step's, then the earlier start's."""
    order = sorted(
        range(len(plan)), key=lambda i: (99 if plan[i][2] is None else plan[i][2], plan[i][0], -plan[i][1], i)
    )
    found: dict[int, int] = {}
    for index in order:
        for tick in range(plan[index][0], plan[index][0] + plan[index][1]):
            found.setdefault(tick, index)
    return found


def naive_energy(rows: list[dict[str, Any]], start: float, end: float, *, by_counter: bool) -> float:
    """One pair of readings at a time. Readings of a counter that did not move are left out, as the method says."""
    key = "energy_j" if by_counter else "power_w"
    known = [(row["t"], float(row[key])) for row in rows if row[key] is not None]
    total = 0.0
    stretches: list[list[tuple[float, float]]] = []
    for i, (t, value) in enumerate(known):
        if i == 0 or t - known[i - 1][0] > 2 + 1e-9:
            stretches.append([])
        stretches[-1].append((t, value))
    for stretch in stretches:
        kept = [
            entry for i, entry in enumerate(stretch)
            if not by_counter or i in (0, len(stretch) - 1) or entry[1] > stretch[i - 1][1]
        ]  # fmt: skip
        for (t0, v0), (t1, v1) in pairwise(kept):
            whole = v1 - v0 if by_counter else (v0 + v1) / 2 * (t1 - t0)
            total += whole * max(0.0, min(t1, end) - max(t0, start)) / (t1 - t0)
    return total


def test_the_curve_alone() -> None:
    ts = np.array([0, 1, 2, 3]) * S + T0
    samples = pl.DataFrame({"ts_ns": ts, "energy_j": [None] * 4, "power_w": [100.0, 200.0, 200.0, 100.0], "power_instant_w": [None] * 4},
                           schema_overrides={"energy_j": pl.Float64, "power_instant_w": pl.Float64})  # fmt: skip
    curve = energy_curve(samples)
    assert curve is not None
    assert curve.total_j == 150 + 200 + 150
    assert curve.span(T0 - 9 * S, T0 + 9 * S) == (500, 3 * S)
    assert curve.span(T0 + S, T0 + S) == (0, 0)
