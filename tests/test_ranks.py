"""Several files as one run: ranks, slices of one recording, clocks of ranks."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import RUN, Recording

from traces import health
from traces.readers.base import Cat

MS, S = 1_000_000, 1_000_000_000
START = 1_000 * S
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def ranks_of(recording: Recording) -> dict[str, int]:
    return {row["name"]: row["rank"] for row in recording.rows("SELECT name, rank FROM stage.sources")}


def staged(recording: Recording) -> list[tuple[Any, ...]]:
    return recording.con.execute(
        "SELECT e.cat, t.text, e.ts + s.shift_ns, e.dur, e.corr, x.text "
        "FROM stage.events AS e JOIN stage.sources AS s USING (src) "
        "LEFT JOIN stage.strings AS t ON t.src = e.src AND t.id = e.name "
        "LEFT JOIN stage.strings AS x ON x.src = e.src AND x.id = e.extra ORDER BY ALL"
    ).fetchall()


# -- slices


def test_launch_and_kernel_of_two_slices_find_each_other() -> None:
    recording = Recording().file(0, trace_id="T", name="late.json").file(1, trace_id="T", name="early.json")
    recording.launch(START, 1, src=1).launch(START + 1000, 2, src=1).kernel(START + MS, MS, 1, src=1, name="first")
    recording.kernel(START + 3 * MS, MS, 2, src=0, name="second", extra="{}")
    report = recording.load().arrange()
    assert report.joined == (("late.json", "early.json"),)
    assert (report.ranks, report.duplicates, report.renumbered) == ((0,), 0, False)
    assert {row["src"] for row in recording.rows("SELECT DISTINCT src FROM stage.events")} == {1}
    recording = Recording().file(0, trace_id="T").file(1, trace_id="T")
    recording.launch(START, 1).launch(START + 1000, 2).kernel(START + MS, MS, 1).kernel(START + 3 * MS, MS, 2, src=1)
    recording.check()
    assert recording.one("SELECT count(*) FROM kernels WHERE launch_id IS NOT NULL") == 2
    assert recording.one("SELECT count(*) FROM sources") == 2  # both files are still named


def test_events_that_both_slices_hold_are_kept_once() -> None:
    recording = Recording().file(0, trace_id="T").file(1, trace_id="T")
    for src in (0, 1):
        recording.kernel(START + 2 * MS, MS, 7, src=src, name="both")
    recording.kernel(START, MS, 6, name="before").kernel(START + 4 * MS, MS, 8, src=1, name="after")
    recording.kernel(START + 3 * MS, 10, 9, name="end of the first")
    report = recording.load().arrange()
    assert report.duplicates == 1
    assert [row[1] for row in staged(recording)] == ["after", "before", "both", "end of the first"]


def test_equal_events_within_a_slice_are_different_events() -> None:
    recording = Recording().file(0, trace_id="T").file(1, trace_id="T")
    for src, times in ((0, 3), (1, 2)):
        for _ in range(times):
            recording.event(Cat.OP, "aten::add", START, 10, src=src)
    assert recording.load().arrange().duplicates == 2
    assert len(staged(recording)) == 3


def test_of_a_cut_event_the_longer_one_stays() -> None:
    recording = Recording().file(0, trace_id="T").file(1, trace_id="T")
    recording.event(Cat.OP, "forward", START, 4 * MS).event(Cat.OP, "forward", START, 9 * MS, src=1)
    recording.event(Cat.OP, "backward", START, None).event(Cat.OP, "backward", START, 9 * MS, src=1)
    assert recording.load().arrange().duplicates == 2
    assert [row[1:4] for row in staged(recording)] == [("backward", START, 9 * MS), ("forward", START, 9 * MS)]


def test_slices_with_bases_of_their_own() -> None:
    recording = Recording().file(0, trace_id="T", base_ns=START).file(1, trace_id="T", base_ns=START + S)
    recording.kernel(0, MS, 1).kernel(5 * MS, MS, 2, src=1)
    recording.load().arrange()
    assert [row[2] for row in staged(recording)] == [START, START + S + 5 * MS]


def test_three_slices_and_a_file_of_another_recording() -> None:
    recording = Recording()
    for src in range(4):
        recording.file(src, trace_id="T" if src != 2 else "U", rank=0 if src != 2 else 1)
        recording.kernel(START + src * MS, MS, src, src=src, name=f"k{src}", extra=json.dumps({"n": src}))
    report = recording.load().arrange()
    assert report.joined == (("f1.json", "f0.json"), ("f3.json", "f0.json")) and report.ranks == (0, 1)
    assert [(row[1], row[5]) for row in staged(recording)] == [(f"k{n}", json.dumps({"n": n})) for n in range(4)]
    assert recording.one("SELECT count(*) - count(DISTINCT (src, seq)) FROM stage.events") == 0
    assert recording.one("SELECT count(*) - count(DISTINCT (src, id)) FROM stage.strings") == 0


def test_files_without_a_trace_id_are_no_slices() -> None:
    recording = Recording().file(0).file(1)
    recording.kernel(START, MS, 1).kernel(START + 5 * MS, MS, 1, src=1)
    assert recording.load().arrange().joined == ()


events = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.sampled_from("abc")), min_size=2, max_size=25)


@settings(max_examples=25, deadline=None)
@given(rows=events, low=st.integers(0, 30), high=st.integers(0, 30))
def test_slices_join_to_what_was_sliced(rows: list[tuple[int, int, str]], low: int, high: int) -> None:
    whole = Recording().file(0, trace_id="T")
    parts = Recording().file(0, trace_id="T").file(1, trace_id="T")
    for ts, dur, name in rows:
        whole.event(Cat.OP, name, START + ts, dur)
        for src, inside in ((0, ts <= max(low, high)), (1, ts >= min(low, high))):
            if inside:
                parts.event(Cat.OP, name, START + ts, dur, src=src)
    whole.load().arrange()
    parts.load().arrange()
    assert staged(parts) == staged(whole)


# -- ranks


def test_replicas_that_claim_one_rank_at_the_same_time_are_numbered_through() -> None:
    names = ["dp0_tp0", "dp0_tp1", "dp1_tp0", "dp1_tp1"]
    for order in (names, names[::-1]):
        recording = Recording()
        for src, name in enumerate(order):
            recording.file(src, rank=int(name[-1]), trace_id=f"id-{name}", name=name)
            recording.launch(START, 1, src=src).kernel(START + MS, MS, 1, src=src)
        report = recording.load().arrange()
        assert report.renumbered and report.ranks == (0, 1, 2, 3)
        assert ranks_of(recording) == {name: number for number, name in enumerate(names)}


def test_later_sessions_of_a_worker_keep_its_rank() -> None:
    recording = Recording()
    for src in range(3):
        recording.file(src, rank=1, trace_id=f"session {src}").kernel(START + src * S, MS, 1, src=src)
    report = recording.load().arrange()
    assert not report.renumbered and report.ranks == (1,) and report.joined == ()


def test_sessions_of_replicas_stay_with_their_worker() -> None:
    recording = Recording()
    for src, (name, at) in enumerate([("a-dp0", 0), ("a-dp1", 0), ("b-dp0", 10), ("b-dp1", 10)]):
        recording.file(src, trace_id=name, name=name).kernel(START + at * S, S, 1, src=src)
    recording.load().arrange()
    assert ranks_of(recording) == {"a-dp0": 0, "a-dp1": 1, "b-dp0": 0, "b-dp1": 1}


def test_equal_pids_of_two_ranks_stay_apart() -> None:
    recording = Recording().file(0, rank=0, trace_id="A").file(1, rank=1, trace_id="B")
    for src in (0, 1):
        recording.label(START, MS, pid=251, tid=251, src=src)
        recording.launch(START + 10, 5, pid=251, tid=251, src=src).kernel(START + MS, (src + 1) * MS, 5, src=src)
    recording.check()
    rows = recording.rows(
        "SELECT k.rank, s.rank AS step_rank, k.dur_ns FROM kernels AS k JOIN steps AS s USING (step_id)"
    )
    assert sorted(tuple(row.values()) for row in rows) == [(0, 0, MS), (1, 1, 2 * MS)]


# -- clocks


def collectives(
    recording: Recording,
    src: int,
    ends: list[int],
    *,
    ahead: int = 0,
    late: int = 0,
    name: str = REDUCE,
    nelems: int | None = None,
) -> None:
    """Collectives that end at `ends` on a clock that is `ahead`; the recording begins with the `late`-th."""
    for corr, end in enumerate(ends[late:]):
        extra = None if nelems is None else json.dumps({"Collective name": "allreduce", "In msg nelems": nelems})
        recording.kernel(end + ahead - 20_000, 20_000, corr, src=src, name=name, extra=extra)


def irregular(count: int, seed: int = 7) -> list[int]:
    draw = random.Random(seed)
    ends = [START]
    for _ in range(count):
        ends.append(ends[-1] + draw.randrange(100_000, 900_000))
    return ends


def offsets(recording: Recording) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in recording.rows("SELECT * FROM clock_offsets ORDER BY rank")}


@pytest.mark.parametrize("ahead", [5 * MS, -5 * MS, 40 * MS])
@pytest.mark.parametrize("late", [0, 9])
def test_offset_from_matching_collectives(ahead: int, late: int) -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    ends, noise = irregular(120), random.Random(1)
    collectives(recording, 0, ends)
    collectives(recording, 1, [end + noise.randrange(-2000, 2001) for end in ends], ahead=ahead, late=late)
    found = recording.check()
    row = offsets(recording)[1]
    assert abs(row["offset_ns"] - ahead) < 1500 and row["spread_ns"] < 3000
    assert (row["reference_rank"], row["n_matched"], row["applied"]) == (0, 121 - late, True)
    ends_of = "SELECT start_ns, row_number() OVER (ORDER BY start_ns DESC) AS i FROM kernels WHERE rank"
    apart = recording.one(
        f"SELECT max(abs(a.start_ns - b.start_ns)) FROM ({ends_of} = 0) AS a JOIN ({ends_of} = 1) AS b USING (i)"
    )
    assert apart < 5000
    health_row = found[1, "clock_offset"]
    assert health_row["status"] == "ok" and health_row["value"] == row["offset_ns"]
    assert "its times were moved by that" in health_row["message"]
    assert ("ahead by" if ahead > 0 else "behind by") in health_row["message"]


def test_a_regular_loop_fits_at_every_round_and_the_smallest_offset_is_taken() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    ends = [START + number * 500_000 for number in range(100)]
    collectives(recording, 0, ends)
    collectives(recording, 1, ends, ahead=30_000, late=13)
    recording.load().arrange()
    assert offsets(recording)[1]["offset_ns"] == 30_000


def test_clocks_that_agree_are_left_alone() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B").file(2, rank=2, trace_id="C")
    for src in range(3):
        collectives(recording, src, irregular(50), ahead=src * 3000)
    report = recording.load().arrange()
    assert report.corrected == () and {rank: row["offset_ns"] for rank, row in offsets(recording).items()} == {
        1: 3000,
        2: 6000,
    }
    assert recording.one("SELECT bool_and(shift_ns = base_ns) FROM stage.sources") is True


def test_an_uncertain_offset_is_not_applied_and_said() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    draw = random.Random(3)  # collectives that end whenever they like
    collectives(recording, 0, irregular(60))
    collectives(recording, 1, sorted(end + draw.randrange(0, 80 * MS) for end in irregular(60, seed=8)))
    found = recording.check()
    assert offsets(recording)[1]["applied"] is False
    row = found[1, "clock_offset"]
    assert row["status"] == "warning" and "too uncertain to correct" in row["message"]


def test_few_collectives_are_stored_but_not_applied() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    for src in (0, 1):
        collectives(recording, src, irregular(3), ahead=src * 50 * MS)
    assert recording.load().arrange().corrected == ()
    row = offsets(recording)[1]
    assert (row["offset_ns"], row["n_matched"], row["applied"]) == (50 * MS, 4, False)


def test_sizes_are_told_apart() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    small, large = irregular(40, seed=1), irregular(40, seed=2)
    for src in (0, 1):
        collectives(recording, src, small, ahead=src * MS, nelems=128, late=src * 5)
        collectives(recording, src, large, ahead=src * MS, nelems=4096)
    recording.load().arrange()
    row = offsets(recording)[1]
    assert (row["offset_ns"], row["spread_ns"], row["n_matched"]) == (MS, 0, 36 + 41)


@pytest.mark.parametrize("names", [("gemm", "gemm"), (REDUCE, "ncclDevKernel_AllGather_RING_LL"), (REDUCE, "gemm")])
def test_nothing_to_compare(names: tuple[str, str]) -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    for src, name in enumerate(names):
        collectives(recording, src, irregular(20), name=name)
    recording.check()
    assert offsets(recording) == {}


def test_one_rank_has_no_offsets() -> None:
    recording = Recording().file(0)
    collectives(recording, 0, irregular(20))
    assert recording.load().arrange().ranks == (0,)
    assert offsets(recording) == {}


def test_offsets_of_a_run_are_those_of_its_health() -> None:
    recording = Recording().file(0, trace_id="A").file(1, rank=1, trace_id="B")
    for src in (0, 1):
        collectives(recording, src, irregular(20), ahead=src * MS)
    recording.check()
    recording.con.execute("DETACH stage")
    health.check(recording.con, RUN)
    assert recording.health()[1, "clock_offset"]["value"] == MS
