"""Execution-idle equals what was planted: at every threshold, with signals missing, at both durations, against an oracle."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from energy_plant import LOW, RUN, T0, Plant, S, ns
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import energy
from analyzers.energy_curve import gap_limit_ns
from analyzers.energy_devices import sensed_devices
from analyzers.energy_states import execution_idle_rows, state_rows
from analyzers.execution_idle import ACTIVITY, LINK_COLUMNS, SIGNALS, cleaned, intervals, seconds, signals_of

COLUMNS = [*SIGNALS, "resident"]
JUST_BELOW, AT = 0.05 - 1e-9, 0.05


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows with `ts_ns`, any signals, `resident` (True where not given)."""
    filled = [{"resident": True, **dict.fromkeys(SIGNALS), **row} for row in rows]
    schema = {"ts_ns": pl.Int64, **dict.fromkeys(SIGNALS, pl.Float64), "resident": pl.Boolean}
    return pl.DataFrame(filled, schema=schema, orient="row")


def states(rows: list[dict[str, Any]], **how: Any) -> list[str]:
    """State of every second of rows at 1 Hz."""
    given_rows = [{"ts_ns": T0 + i * S, **row} for i, row in enumerate(rows)]
    samples = cleaned(frame(given_rows))
    return seconds(samples, gap_limit_ns(samples["ts_ns"].to_numpy()), **how)["state"].to_list()


def state_of(row: dict[str, Any], **how: Any) -> str:
    (only,) = states([row, row], **how)
    return only


@pytest.mark.parametrize("signal", ACTIVITY)
@pytest.mark.parametrize(
    ("value", "state"), [(0.0, "execution_idle"), (JUST_BELOW, "execution_idle"), (AT, "active"), (1.0, "active")]
)
def test_every_activity_at_its_threshold(signal: str, value: float, state: str) -> None:
    assert state_of({signal: value}) == state  # alone: the others are missing
    assert state_of({**LOW, signal: value}) == state  # with the others low


@pytest.mark.parametrize("signal", LINK_COLUMNS)
@pytest.mark.parametrize(
    ("value", "state"),
    [(0.0, "execution_idle"), (math.nextafter(1e9, 0), "execution_idle"), (1e9, "active"), (5e10, "active")],
)
def test_every_link_at_its_threshold(signal: str, value: float, state: str) -> None:
    assert state_of({"sm_active": 0.0, signal: value}) == state


def test_the_sum_of_directions_counts_only_where_one_is_missing() -> None:
    apart = {"sm_active": 0.0, "pcie_tx_bytes_s": 6e8, "pcie_rx_bytes_s": 6e8}
    assert state_of({**apart, "pcie_bytes_s": 1.2e9}) == "execution_idle"
    assert state_of({**apart, "pcie_rx_bytes_s": None, "pcie_bytes_s": 1.2e9}) == "active"
    assert state_of({"sm_active": 0.0, "nvlink_bytes_s": 1.2e9}) == "active"


def test_residence() -> None:
    assert state_of({**LOW, "resident": False}) == "deep_idle"
    assert state_of({**LOW, "resident": None}) == "unknown"
    assert state_of({**LOW, "resident": None}, assume_resident=True) == "execution_idle"
    assert state_of({**LOW, "resident": False}, assume_resident=True) == "deep_idle"  # the sensor knows better
    assert state_of({**LOW, "resident": None}, resident_spans=[(T0, T0 + S)]) == "execution_idle"
    assert state_of({**LOW, "resident": None}, resident_spans=[(T0 + 1, T0 + S)]) == "unknown"
    assert state_of({"sm_active": 0.9, "resident": None}) == "active"
    assert state_of({"sm_active": 0.9, "resident": False}) == "active"  # somebody's program ran


def test_without_an_activity_signal_the_state_is_unknown_not_idle() -> None:
    assert state_of({}) == "unknown"
    assert state_of({"pcie_tx_bytes_s": 1e6}) == "unknown"
    assert state_of({"pcie_tx_bytes_s": 2e9}) == "active"  # one signal above its threshold is enough
    assert state_of({"resident": False}) == "deep_idle"
    samples = cleaned(frame([{"ts_ns": T0}, {"ts_ns": T0 + S}]))
    assert seconds(samples, 2 * S)["why"].to_list() == ["no_signal"]


def test_utilization_stands_in_only_where_there_is_no_activity_signal_at_all() -> None:
    assert state_of({"sm_util": 0.2}) == "active"
    assert state_of({"sm_util": 0.0}) == "execution_idle"
    assert state_of({"sm_util": 0.9, "sm_active": 0.01}) == "execution_idle"
    # a second that lost its signal is not judged by another rule than the rest
    assert states([{"sm_util": 0.0, "sm_active": 0.0}, {"sm_util": 0.0}, {"sm_active": 0.0}]) == [
        "execution_idle",
        "unknown",
    ]
    assert signals_of(cleaned(frame([{"ts_ns": T0, "sm_util": 0.1}]))) == ("sm_util",)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_an_impossible_reading_is_a_missing_one(value: float) -> None:
    assert state_of({"sm_active": value}) == "unknown"
    assert state_of({"sm_active": 0.0, "dram_active": value}) == "execution_idle"


def test_a_second_is_the_mean_of_its_samples() -> None:
    def at_10_hz(values: list[float]) -> list[str]:
        rows = [{"ts_ns": T0 + i * S // 10, "sm_active": value} for i, value in enumerate(values)]
        samples = cleaned(frame(rows))
        return seconds(samples, 2 * S)["state"].to_list()

    assert at_10_hz([0.49] + [0.0] * 10) == ["execution_idle"]  # mean 4.9 %
    assert at_10_hz([0.5] + [0.0] * 10) == ["active"]
    assert at_10_hz([0.05] * 11) == ["active"]  # whatever the sum of ten is in binary
    assert at_10_hz([0.0] * 10 + [1.0] * 10 + [0.0] * 11) == ["execution_idle", "active", "execution_idle"]


@pytest.mark.parametrize("length", [1, 4, 5, 6])
def test_both_durations(length: int) -> None:
    active, idle = {"sm_active": 0.5}, {"sm_active": 0.0}
    plant = Plant().samples(
        {"t": float(i), "resident": True, "power_w": 100.0, **(idle if 10 <= i < 10 + length else active)}
        for i in range(30)
    )
    energy.fill(plant.con, RUN)
    found = plant.rows("SELECT min_duration_s, start_ns, end_ns, energy_j FROM execution_idle ORDER BY 1")
    one = (ns(10), ns(10 + length), 100.0 * length)
    assert found == [(0.0, *one)] + ([(5.0, *one)] if length >= 5 else [])
    devices = sensed_devices(plant.con, RUN)
    for duration in (0.0, 5.0, 5.5):
        idle_s = length if length >= duration else 0
        times = {row["state"]: row["time_ns"] for row in state_rows(devices, duration)}
        assert times == {"active": (29 - idle_s) * S, "execution_idle": idle_s * S, "deep_idle": 0, "unknown": 0}
        (row,) = execution_idle_rows(devices, [duration])
        assert (row["n"], row["time_share"], row["energy_share"]) == (
            int(idle_s > 0),
            idle_s / 29,
            pytest.approx(idle_s / 29),
        )
        assert row["p50_s"] == (idle_s or None)


def test_a_gap_in_the_samples_ends_an_interval_and_counts_nowhere() -> None:
    times = [*range(4), *range(10, 14)]
    plant = Plant().samples({"t": float(t), "resident": True, "sm_active": 0.0, "power_w": 50.0} for t in times)
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT min_duration_s, start_ns, end_ns, energy_j FROM execution_idle ORDER BY start_ns") == [
        (0.0, ns(0), ns(3), 150.0), (0.0, ns(10), ns(13), 150.0),
    ]  # fmt: skip
    (device,) = sensed_devices(plant.con, RUN)
    assert (device.gaps, device.gap_ns) == (1, 7 * S)
    assert device.curve is not None and (device.curve.total_j, device.curve.total_ns) == (300.0, 6 * S)


def test_jitter_around_full_seconds_and_a_slow_sampler() -> None:
    late = [0.0, 1.003, 1.998, 3.004, 3.999, 5.0]
    rows = [{"ts_ns": ns(t), "sm_active": value} for t, value in zip(late, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0], strict=True)]
    found = seconds(cleaned(frame(rows)), 2 * S)
    assert found["state"].to_list() == ["execution_idle", "active", "execution_idle", "active", "execution_idle"]
    slow = [{"ts_ns": ns(10 * i), "sm_active": value} for i, value in enumerate([0.0, 1.0, 0.0, 0.0])]
    found = seconds(cleaned(frame(slow)), gap_limit_ns(frame(slow)["ts_ns"].to_numpy()))
    assert found["state"].to_list() == ["execution_idle"] * 10 + ["active"] * 10 + ["execution_idle"] * 10


def test_a_slow_source_beside_a_fast_one_is_held_until_its_next_sample() -> None:
    """Power at 10 Hz, activity every 5 s and residence every 2 s, from other sources; none of it at the same moment."""
    plant = Plant().samples({"t": i / 10, "power_w": 100.0} for i in range(401))
    plant.samples({"t": 0.03 + 5 * i, "sm_active": 0.9 if i % 4 == 1 else 0.0} for i in range(9))
    plant.samples({"t": 0.01 + 2 * i, "resident": True} for i in range(21))
    energy.fill(plant.con, RUN)
    (device,) = sensed_devices(plant.con, RUN)
    times = {row["state"]: row["time_ns"] for row in state_rows([device], 0)}
    # held from 5.03 to 10.03 and from 25.03 to 30.03: the last second of each has 3 % of it, by time, and a sample in eleven
    assert times["active"] == 2 * 6 * S and device.curve is not None and device.curve.total_j == pytest.approx(4000)
    assert times["unknown"] == 0


def test_analysis_again_replaces_what_was_there() -> None:
    plant = Plant().samples({"t": float(t), "resident": True, "sm_active": 0.0} for t in range(9))
    for _ in range(2):
        energy.fill(plant.con, RUN)
        assert plant.rows("SELECT min_duration_s, energy_j FROM execution_idle ORDER BY 1") == [
            (0.0, None),
            (5.0, None),
        ]
    plant.con.execute("DELETE FROM telemetry")
    energy.fill(plant.con, RUN)
    assert plant.rows("SELECT * FROM execution_idle") == []


# One value on each side of every threshold; None is a missing signal.
activities = st.sampled_from([None, 0.0, JUST_BELOW, AT, 0.8])
links = st.sampled_from([None, 0.0, math.nextafter(1e9, 0), 1e9, 3e9])
sample = st.fixed_dictionaries(
    {
        **dict.fromkeys((*ACTIVITY, "sm_util"), activities), **dict.fromkeys(LINK_COLUMNS, links),
        "resident": st.sampled_from([True, True, True, False, None]),
    }
)  # fmt: skip
sparse = st.fixed_dictionaries({"sm_active": activities, "resident": st.sampled_from([True, True, None, False])})
steps_ns = st.sampled_from([S // 10, S // 4, S // 2, S - 3_000_000, S, S + 2_000_000, 1_700_000_000, 4 * S])
recordings = st.lists(st.tuples(steps_ns, st.one_of(sample, sparse)), min_size=2, max_size=40)


def hold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Signals of slower sources held until their next sample, one signal and one row at a time."""
    period = statistics.median(b["ts_ns"] - a["ts_ns"] for a, b in pairwise(rows))
    result = [dict(row) for row in rows]
    for name in COLUMNS:
        own = [i for i, row in enumerate(rows) if row.get(name) is not None]
        steps = [rows[b]["ts_ns"] - rows[a]["ts_ns"] for a, b in pairwise(own)]
        if not steps or statistics.median(steps) < 3 * period:
            continue
        limit = min(max(2.5 * statistics.median(steps), 2 * S), 150 * S)
        for a, b in pairwise(own):
            for i in range(a + 1, b):
                if rows[b]["ts_ns"] - rows[a]["ts_ns"] <= limit:
                    result[i][name] = rows[a][name]
    return result


def oracle(rows: list[dict[str, Any]], limit_ns: int) -> list[tuple[int, int, str]]:
    """Seconds and their states, one second and one sample at a time."""
    uses_stand_in = not any(row.get(name) is not None for row in rows for name in ACTIVITY)
    names = ["sm_util"] if uses_stand_in else list(ACTIVITY)
    stretches: list[list[int]] = [[0]]
    for i in range(1, len(rows)):
        if rows[i]["ts_ns"] - rows[i - 1]["ts_ns"] > limit_ns:
            stretches.append([])
        stretches[-1].append(i)
    found = []
    for stretch in stretches:
        start, last = rows[stretch[0]]["ts_ns"], rows[stretch[-1]]["ts_ns"]
        second = start
        while second < last:
            end = min(second + S, last)
            mine = []
            for i in stretch[:-1]:
                middle2 = rows[i]["ts_ns"] + rows[i + 1]["ts_ns"]
                if 2 * second <= middle2 < 2 * (second + S):
                    mine.append(rows[i])
            if not mine:
                middle = second + (end - second) // 2
                mine = [rows[max(i for i in stretch if rows[i]["ts_ns"] <= middle)]]
            found.append((second, end, judge(mine, names)))
            second += S
    return found


def judge(rows: list[dict[str, Any]], names: list[str]) -> str:
    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return math.fsum(values) / len(values) if values else None

    means = [value for name in names if (value := mean(name)) is not None]
    rates = []
    for link in ("pcie", "nvlink"):
        apart = [mean(f"{link}_{way}_bytes_s") for way in ("tx", "rx")]
        rates += [rate for rate in apart if rate is not None]
        both = mean(f"{link}_bytes_s")
        if both is not None and None in apart:
            rates.append(both)
    if any(value > 0.05 - 1e-12 for value in means) or any(rate >= 1e9 for rate in rates):
        return "active"
    said = [row["resident"] for row in rows if row.get("resident") is not None]
    if said and not any(said):
        return "deep_idle"
    return "execution_idle" if means and said else "unknown"


@settings(max_examples=300, deadline=None)
@given(recording=recordings)
def test_states_and_intervals_against_a_naive_oracle(recording: list[tuple[int, dict[str, Any]]]) -> None:
    ts, rows = T0, []
    for step, values in recording:
        rows.append({"ts_ns": ts, **values})
        ts += step
    samples = cleaned(frame(rows))
    limit = gap_limit_ns(samples["ts_ns"].to_numpy())
    expected = oracle(hold(rows), limit)
    found = seconds(samples, limit)
    assert found.select("start_ns", "end_ns", "state").rows() == expected
    for duration in (0.0, 2.0, 5.0):
        assert intervals(found, duration).rows() == joined(expected, duration)


def joined(rows: list[tuple[int, int, str]], duration_s: float) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end, state in rows:
        if state != "execution_idle":
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return [(start, end) for start, end in found if end - start >= duration_s * S]
