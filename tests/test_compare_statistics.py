"""The statistics of a comparison: against tables, naive oracles, and simulations whose truth is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.comparison import student
from analyzers.comparison.effect import (
    DIFFERENCE,
    LOG,
    LONG_NS,
    SHARED,
    Design,
    Effect,
    Noise,
    design,
    discoveries,
    effect,
    stretched,
)  # fmt: skip
from analyzers.comparison.judge import BETTER, SAME, WORSE, Terms, judge
from analyzers.comparison.metric import HIGHER, LOWER, Metric
from analyzers.comparison.sample import Quantile, Ratio, nameless, pooled

NO_NOISE = Noise(pass_spread=0.0, drift=0.0)
ALONE = Design(rounds=())
Array = np.ndarray[Any, Any]


def ratio(values: Array, keys: list[Any] | None = None) -> Ratio:
    """A mean of units of one observation each."""
    made = np.asarray(values, dtype=np.float64)
    return Ratio(
        numerator=made, denominator=np.ones(len(made)), n=len(made), keys=list(range(len(made))) if keys is None else keys
    )  # fmt: skip


# ---- Student's t


@pytest.mark.parametrize(
    ("t", "freedom", "level"),
    [
        (12.7062, 1, 0.05),
        (4.30265, 2, 0.05),
        (2.77645, 4, 0.05),
        (3.74695, 4, 0.02),
        (2.22814, 10, 0.05),
        (4.58689, 10, 0.001),
    ],
)
def test_t_agrees_with_the_tables(t: float, freedom: int, level: float) -> None:
    assert student.two_sided(t, freedom) == pytest.approx(level, rel=1e-4)
    assert student.quantile(level, freedom) == pytest.approx(t, rel=1e-4)


def test_t_with_one_and_with_two_degrees_has_its_closed_form() -> None:
    for t in (0.1, 1.0, 3.0, 50.0):
        assert student.two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)
        assert student.two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9)
    assert student.two_sided(0, 3) == pytest.approx(1)
    assert student.two_sided(math.inf, 3) == 0


@given(level=st.floats(1e-9, 0.999), freedom=st.floats(1, 500))
def test_the_quantile_is_the_inverse_of_the_tail(level: float, freedom: float) -> None:
    assert student.two_sided(student.quantile(level, freedom), freedom) == pytest.approx(level, rel=1e-6)


# ---- samples


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(1e3, 1e9), min_size=6, max_size=60), q=st.sampled_from([0.5, 0.9, 0.99]), seed=st.integers(0, 999)
)  # fmt: skip
def test_a_resampled_quantile_is_that_of_the_values_drawn(values: list[float], q: float, seed: int) -> None:
    units = np.arange(len(values)) % 6
    weights = np.random.default_rng(seed).multinomial(6, np.full(6, 1 / 6), size=5).astype(float)
    found = Quantile(values=np.array(values), units=units, q=q, keys=list(range(6))).resampled(weights)
    for row, number in zip(weights, found, strict=True):
        drawn = np.sort(np.repeat(values, row[units].astype(int)))
        # between the values beside the quantile, and a bin's width
        at = q * (len(drawn) - 1)
        low, high = drawn[max(math.floor(at) - 1, 0)], drawn[min(math.ceil(at) + 1, len(drawn) - 1)]
        assert low * 0.98 <= number <= high * 1.02


def test_a_resampled_ratio_is_that_of_the_units_drawn() -> None:
    sample = Ratio(numerator=np.array([1.0, 4.0, 9.0]), denominator=np.array([1.0, 2.0, 0.0]), n=3, keys=[0, 1, 2])
    assert sample.point() == 14 / 3
    assert sample.resampled(np.array([[1, 1, 1], [2, 1, 0], [0, 0, 3.0]])).tolist() == [14 / 3, 6 / 4, 14 / 3]


def test_a_sample_without_anything_has_no_number() -> None:
    assert math.isnan(Ratio(numerator=np.zeros(3), denominator=np.zeros(3), n=0, keys=[0, 1, 2]).point())
    assert math.isnan(Quantile(values=np.zeros(0), units=np.zeros(0, dtype=np.int64), q=0.5, keys=[]).point())


# ---- several numbers at once


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_intervals_leave_zero_out_exactly_for_the_discoveries_of_benjamini_and_hochberg(p_values: list[float]) -> None:
    alpha, m = 0.05, len(p_values)
    level = discoveries(p_values, alpha)
    ranked = sorted(p_values)
    below = [k for k in range(1, m + 1) if ranked[k - 1] <= k * alpha / m]
    found = set(ranked[: max(below)]) if below else set()
    assert {p for p in p_values if p <= level} == set(found)


def test_a_p_value_and_its_interval_agree() -> None:
    for estimate in (-0.5, -0.3, 0.0, 0.31, 0.8):
        one = Effect(base=1, cand=1, estimate=estimate, error=0.07, freedom=7, allowance=0.2, method="")
        for level in (0.001, 0.01, 0.05, 0.3):
            low, high = one.interval(level)
            assert (one.p_value() < level) == (low > 0 or high < 0)


# ---- passes in time


def test_passes_in_turns_are_paired_by_their_time() -> None:
    assert design([0, 20, 40], [10, 30, 50]).rounds == ((0, 0), (1, 1), (2, 2))
    assert design([0, 30], [10, 20]).rounds == ((0, 0), (1, 1))  # A B B A
    assert design([0, 10], [20, 30]).rounds == ()  # A A B B: a drift in between is no noise of the pairs
    assert design([0], [10]).rounds == ()
    assert design([0, 20], [10]).rounds == ()
    assert design([0, None], [10, 30]).rounds == ()


def test_a_short_pass_is_allowed_more() -> None:
    assert stretched(0.2, LONG_NS) == stretched(0.2, 10 * LONG_NS) == stretched(0.2, None) == 0.2
    assert stretched(0.2, LONG_NS // 4) == pytest.approx(0.4)


# ---- verdicts


def verdict(base: list[Ratio], cand: list[Ratio], better: str | None = LOWER, **more: Any) -> Any:
    metric = Metric(
        metric_id="m",
        group="latency",
        title="m",
        unit=more.pop("unit", "ns"),
        better=better,
        base=base,
        cand=cand,
        **more,
    )
    return judge([metric], Terms(alpha=0.05, drift=0.0))[0]


def test_which_way_is_better() -> None:
    low, high = ratio(np.linspace(10, 11, 20)), ratio(np.linspace(20, 21, 20))
    assert verdict([low], [high]).verdict == WORSE
    assert verdict([high], [low]).verdict == BETTER
    assert verdict([low], [high], HIGHER).verdict == BETTER
    assert verdict([low], [high], None).verdict == "changed"
    assert verdict([low], [low]).verdict == SAME


def test_a_share_that_is_zero_on_one_side_can_be_compared() -> None:
    none = Ratio(numerator=np.zeros(10), denominator=np.full(10, 100.0), n=10, keys=list(range(10)))
    some = Ratio(numerator=np.full(10, 30.0), denominator=np.full(10, 100.0), n=10, keys=list(range(10)))
    row = verdict([none], [some], unit="share", timed=False)
    assert (row.verdict, row.base, row.cand, row.change) == (WORSE, 0.0, 0.3, 0.3)


def test_shares_are_no_further_apart_than_the_whole() -> None:
    base, cand = ([ratio(np.tile([low, 1.0 - low], 4))] for low in (0.1, 0.2))
    metric = Metric(metric_id="m", group="idle", title="m", unit="share", base=base, cand=cand, shortest_ns=1_000_000)
    row = judge([metric], Terms(alpha=0.05))[0]  # of a pass that short, all is allowed
    assert (row.low, row.high, row.drift, row.verdict) == (-1.0, 1.0, 1.0, SAME)


def test_what_cannot_be_judged_says_why() -> None:
    few = ratio(np.array([1.0, 2.0]))
    row = verdict([few], [few])
    assert (row.verdict, row.base, row.change) == ("not judged", 1.5, None)
    assert row.reason == "units: 2, and 6 are needed to tell a spread, or several passes"
    zero = ratio(np.zeros(10))
    assert verdict([zero], [zero]).reason == "0 or not known on a side"


def test_two_passes_that_agree_by_chance_prove_nothing() -> None:
    """Two of each side, each pair equal to the last digit, sides 10 % apart: passes do differ by that."""
    side = [[ratio(np.full(8, value))] * 2 for value in (100.0, 110.0)]
    found = effect(side[0], side[1], LOG, Noise(pass_spread=SHARED.spread, drift=0.0), Design(rounds=((0, 0), (1, 1))))
    assert found is not None and found.p_value() > 0.05
    sure = effect(side[0], side[1], LOG, NO_NOISE, Design(rounds=((0, 0), (1, 1))))
    assert sure is not None and sure.p_value() == 0, "of a count that no clock has a part in it is a difference"


def test_a_count_that_differs_twice_in_one_session_only_is_none() -> None:
    base, cand = np.full(8, 100.0), np.full(8, 100.0)
    cand[3] = 228.0
    plan = Design(rounds=((0, 0), (1, 1)))
    one = effect([ratio(base)] * 2, [ratio(cand)] * 2, DIFFERENCE, NO_NOISE, plan)
    assert one is not None and one.estimate == 16 and one.p_value() > 0.05
    few = effect([ratio(base[:2])] * 2, [ratio(cand[:2])] * 2, DIFFERENCE, NO_NOISE, plan)
    assert few is None


def test_passes_are_pooled_by_key() -> None:
    one = pooled([ratio(np.array([1.0, 2.0]), keys=["a", "b"]), ratio(np.array([4.0, 8.0]), keys=["b", "c"])])
    assert isinstance(one, Ratio)
    assert (one.keys, one.numerator.tolist(), one.denominator.tolist(), one.n) == (
        ["a", "b", "c"],
        [1, 6, 8],
        [1, 2, 1],
        4,
    )


def test_a_drift_between_sides_that_were_not_taken_in_turns_is_allowed_for() -> None:
    base = [ratio(np.full(8, value)) for value in (100.0, 101.0, 99.0, 100.0)]
    cand = [ratio(np.full(8, value)) for value in (125.0, 126.0, 124.0, 125.0)]
    noise = Noise(pass_spread=0.01, drift=math.log1p(SHARED.drift))
    apart, turns = (
        effect(base, cand, LOG, noise, plan) for plan in (ALONE, Design(rounds=tuple((k, k) for k in range(4))))
    )
    assert apart is not None and apart.p_value() == 1.0
    assert turns is not None and turns.p_value() < 1e-4


# ---- coverage, on runs whose truth is known


def simulated_pass(random: np.random.Generator, truth: float, pass_sd: float, own: Array) -> Ratio:
    """Sessions with times of their own (the same in every pass of a plan), noise of each request, and one of the pass."""
    speed = math.exp(random.normal(0, pass_sd))
    return ratio(truth * speed * own * np.exp(random.normal(0, 0.15, len(own))))


@pytest.mark.parametrize("truth", [1.0, 1.1, 2.0])
def test_intervals_of_passes_in_turns_cover_the_truth(truth: float) -> None:
    """200 pairs of sides of three passes, while the machine drifts by 10 % from pass to pass around a slow trend."""
    random = np.random.default_rng(7)
    covered = found = 0
    for _ in range(200):
        own, trend = np.exp(random.normal(0, 0.5, 12)), np.exp(np.cumsum(random.normal(0, 0.03, 6)))
        base = [simulated_pass(random, 100 * trend[2 * k], 0.08, own) for k in range(3)]
        cand = [simulated_pass(random, 100 * truth * trend[2 * k + 1], 0.08, own) for k in range(3)]
        one = effect(
            base, cand, LOG, Noise(pass_spread=SHARED.spread, drift=0.3), Design(rounds=((0, 0), (1, 1), (2, 2)))
        )
        assert one is not None
        low, high = one.interval(0.05)
        covered += low <= math.log(truth) <= high
        found += low > 0 or high < 0
    assert covered >= 184  # 95 % of 200 is 190; fewer than 184 has a chance of 2 %
    if truth == 1.0:
        assert found <= 16
    if truth == 2.0:
        assert found == 200


@pytest.mark.parametrize("truth", [1.0, 2.5])
def test_intervals_of_single_passes_cover_the_truth_with_a_drift(truth: float) -> None:
    """200 pairs of one pass each, the machine up to 25 % apart: never a verdict on equal sides, always on a large difference."""
    random = np.random.default_rng(11)
    covered = found = 0
    for _ in range(200):
        own = np.exp(random.normal(0, 0.5, 24))
        drift = random.uniform(-math.log(1.25), math.log(1.25))
        base, cand = simulated_pass(random, 100, 0, own), simulated_pass(random, 100 * truth * math.exp(drift), 0, own)
        one = effect([base], [cand], LOG, Noise(pass_spread=SHARED.spread, drift=math.log1p(SHARED.drift)), ALONE)
        assert one is not None and one.method == "paired"
        low, high = one.interval(0.05)
        covered += low <= math.log(truth) <= high
        found += low > 0 or high < 0
    assert covered >= 190
    assert found <= 4 if truth == 1.0 else found == 200


def test_sampling_alone_is_covered_too() -> None:
    """200 pairs of sides with other sessions each and no drift at all: the bootstrap's own coverage."""
    random = np.random.default_rng(13)
    covered = 0
    for _ in range(200):
        sides = [ratio(100 * np.exp(random.normal(0, 0.4, 30)), keys=nameless(30)) for _ in range(2)]
        one = effect([sides[0]], [sides[1]], LOG, NO_NOISE, ALONE)
        assert one is not None and one.method == "unpaired"
        covered += one.interval(0.05)[0] <= 0 <= one.interval(0.05)[1]
    assert covered >= 184


def test_many_numbers_of_equal_sides_give_few_verdicts() -> None:
    """A/A, 100 pairs of 15 numbers each: a verdict of any of them in at most 5 % (and what chance adds to that)."""
    random = np.random.default_rng(17)
    wrong = 0
    for _ in range(100):
        metrics = []
        for number in range(15):
            sides = [ratio(np.exp(random.normal(0, 0.4, 20)), keys=nameless(20)) for _ in range(2)]
            metrics.append(Metric(
                metric_id=str(number), group="latency", title="", unit="ns", base=[sides[0]], cand=[sides[1]], timed=False
            ))  # fmt: skip
        wrong += any(row.verdict != SAME for row in judge(metrics, Terms(alpha=0.05)))
    assert wrong <= 10


def test_differences_of_shares_cover_the_truth() -> None:
    random = np.random.default_rng(19)
    covered = 0
    for _ in range(200):
        shares = [np.clip(random.normal(middle, 0.1, 20), 0, 1) for middle in (0.3, 0.4)]
        sides = [
            Ratio(numerator=100 * each, denominator=np.full(20, 100.0), n=20, keys=nameless(20)) for each in shares
        ]
        one = effect([sides[0]], [sides[1]], DIFFERENCE, NO_NOISE, ALONE)
        assert one is not None
        covered += one.interval(0.05)[0] <= 0.1 <= one.interval(0.05)[1]
    assert covered >= 184
