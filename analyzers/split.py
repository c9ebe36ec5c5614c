"""The two phases inside one step: whose nanoseconds are they, prefill's or decode's.

Per step and category of kernel, T(P,D) is what the cost model with fitted rates (costs.rates) says for P prefill and D
decode tokens, scaled so that T(P,D) is the measured time. Then

    alone prefill = T(P,0)      alone decode = T(0,D)
    marginal prefill = measured − T(0,D)      marginal decode = measured − T(P,0)
    prefill_ns (shapley) = ½·[alone + marginal]      decode_ns = measured − prefill_ns

so what both phases share (weights read once, launches) is halved. The interval of prefill_ns reaches from its marginal
to its alone time, widened by what the rates do not settle: it holds either order of charging the shared part.

Where decode-only (or prefill-only) steps near in size were measured, `matched` puts their time in place of the model's.
All arrays have one entry per step; times are integer ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.cost import Quantity
from analyzers.costs.features import Features, features
from analyzers.costs.model import IDLE
from analyzers.costs.rates import Rates, fit
from analyzers.costs.roof import Peaks
from analyzers.costs.shape import ModelShape

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SIGMAS = 2.0  # width of the interval beyond the two orders of charging
NEAR = 0.15  # relative distance in rows and in context within which a step of one phase is a match
MOST_MATCHES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of one device: what each phase asked, and what each category took (ns, 0 where it did not occur).

    `launches` is the typical number of kernels of a category in one step, where it was counted.
    """

    prefill: PhaseLoad
    decode: PhaseLoad
    measured: Mapping[str, Integers]
    launches: Mapping[str, float] = field(default_factory=dict)

    def pick(self, index: NDArray[np.bool_] | Integers) -> Steps:
        return Steps(
            prefill=_pick(self.prefill, index),
            decode=_pick(self.decode, index),
            measured={category: times[index] for category, times in self.measured.items()},
            launches=self.launches,
        )

    @property
    def mixed(self) -> NDArray[np.bool_]:
        return (np.asarray(self.prefill.tokens) > 0) & (np.asarray(self.decode.tokens) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Rates per category, forms that the data do not rule out, best first; and the steps of one phase to match."""

    model: ModelShape | None
    rates: Mapping[str, list[Rates]]
    with_logits: bool  # GEMM times include the vocabulary product
    pure: Steps | None = field(default=None)


def learn(model: ModelShape | None, steps: Steps, *, peaks: Peaks | None = None, overlap: bool = False) -> Learned:
    """Fit every category's rates to `steps`, mixed or not; the more sizes they span, the better.

    Without a model, rates are per row and per token of context; peaks mean nothing then and are not used.
    `overlap`: whether the device is expected to load and compute at once (a GPU does, a single CPU thread does not).
    """
    with_logits = not np.any(steps.measured.get("logits", 0))
    rates = {}
    for category, times in steps.measured.items():
        given = features(
            model, category, steps.prefill, steps.decode,
            with_logits=with_logits, launches=steps.launches.get(category),
        )  # fmt: skip
        usable = np.where(_unsure(steps, category), 0, times).astype(np.float64)
        rates[category] = fit(given, usable, peaks if model is not None else None, overlap=overlap)
    pure = steps.pick(~steps.mixed)
    return Learned(model=model, rates=rates, with_logits=with_logits, pure=pure)


def split(learned: Learned, steps: Steps, *, match: bool = True) -> pl.DataFrame:
    """One row per step and category with time, prefill_ns + decode_ns = measured_ns exactly.

    Columns: step (index into `steps`), category, measured_ns, prefill_ns, decode_ns, low_ns, high_ns (of prefill_ns),
    alone_prefill_ns, alone_decode_ns, error_low_ns, error_high_ns (standard errors of the bounds), method
    ('whole' | 'shapley' | 'matched'), known (false: nothing to go by, the interval is everything).
    """
    near = _near_steps(learned, steps) if match else {}
    parts = [
        _split_category(learned, steps, category, times, near)
        for category, times in steps.measured.items()
        if np.any(times)
    ]
    if not parts:
        return pl.DataFrame(schema=_SCHEMA)
    return pl.concat(parts).filter(pl.col("measured_ns") > 0).sort("step", "category")


def per_step(parts: pl.DataFrame) -> pl.DataFrame:
    """The rows of `split` summed to steps.

    Marginals and alone times add up; the errors of different categories are taken as independent. interference_ns is
    measured − alone decode: how much longer the decoding requests waited because of the prefill.
    """
    sums = parts.group_by("step").agg(
        pl.col(
            "measured_ns", "prefill_ns", "decode_ns", "low_ns", "high_ns", "alone_prefill_ns", "alone_decode_ns"
        ).sum(),
        (pl.col("error_low_ns") ** 2).sum().sqrt().alias("error_low_ns"),
        (pl.col("error_high_ns") ** 2).sum().sqrt().alias("error_high_ns"),
        pl.when((pl.col("method") == "matched").any())
        .then(pl.lit("matched"))
        .when((pl.col("method") == "shapley").any())
        .then(pl.lit("shapley"))
        .otherwise(pl.lit("whole"))
        .alias("split_method"),
    )
    low = pl.col("low_ns") - SIGMAS * pl.col("error_low_ns")
    high = pl.col("high_ns") + SIGMAS * pl.col("error_high_ns")
    return (
        sums.sort("step")
        .with_columns(
            split_low_ns=pl.min_horizontal(low.clip(0), "prefill_ns").floor().cast(pl.Int64),
            split_high_ns=pl.max_horizontal(pl.min_horizontal(high, "measured_ns"), "prefill_ns").ceil().cast(pl.Int64),
            interference_ns=pl.col("measured_ns") - pl.col("alone_decode_ns"),
        )
        .drop("low_ns", "high_ns", "error_low_ns", "error_high_ns")
    )


_SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(), "category": pl.String(), "measured_ns": pl.Int64(), "prefill_ns": pl.Int64(),
    "decode_ns": pl.Int64(), "low_ns": pl.Int64(), "high_ns": pl.Int64(), "alone_prefill_ns": pl.Int64(),
    "alone_decode_ns": pl.Int64(), "error_low_ns": pl.Float64(), "error_high_ns": pl.Float64(), "method": pl.String(),
    "known": pl.Boolean(),
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Sides:
    """Alone times of both phases, the extremes over the forms, and standard errors; all ns."""

    prefill: Floats
    decode: Floats
    prefill_most: Floats
    decode_most: Floats
    prefill_error: Floats
    decode_error: Floats


def _split_category(
    learned: Learned, steps: Steps, category: str, times: Integers, near: Mapping[str, _Near]
) -> pl.DataFrame:
    measured = times.astype(np.float64)
    mixed = steps.mixed
    forms = learned.rates.get(category, [])
    sides = _model_sides(learned, steps, category, measured, forms) if forms else _unknown_sides(steps, measured)
    unsure = _unsure(steps, category)
    if forms and unsure.any():
        sides = _chosen(unsure, _unknown_sides(steps, measured), sides)
    matched = np.zeros(len(times), dtype=bool)
    if forms and near:
        matched = _match(learned, steps, category, sides, near)
    only_prefill = ~mixed & (np.asarray(steps.prefill.tokens) > 0)
    only_decode = ~mixed & ~only_prefill
    for side, whole, none in (("prefill", only_prefill, only_decode), ("decode", only_decode, only_prefill)):
        for name in (side, f"{side}_most"):
            array = np.where(none, 0, np.where(whole, measured, getattr(sides, name)))
            setattr(sides, name, np.clip(array, 0, measured))
        setattr(sides, f"{side}_error", np.where(mixed, getattr(sides, f"{side}_error"), 0))
    prefill = np.rint((sides.prefill + measured - sides.decode) / 2).astype(np.int64)
    return pl.DataFrame(
        {
            "step": np.arange(len(times)),
            "category": [category] * len(times),
            "measured_ns": times,
            "prefill_ns": prefill,
            "decode_ns": times - prefill,
            # noise can make the parts alone less than the whole: then the two bounds change places
            "low_ns": np.floor(np.minimum(measured - sides.decode_most, sides.prefill)).astype(np.int64),
            "high_ns": np.ceil(np.maximum(sides.prefill_most, measured - sides.decode)).astype(np.int64),
            "alone_prefill_ns": np.rint(sides.prefill).astype(np.int64),
            "alone_decode_ns": np.rint(sides.decode).astype(np.int64),
            "error_low_ns": sides.decode_error,
            "error_high_ns": sides.prefill_error,
            "method": np.where(mixed, np.where(matched, "matched", "shapley"), "whole"),
            "known": ~unsure | ~mixed if forms else ~mixed,
        },
        schema=_SCHEMA,
    )


def _model_sides(learned: Learned, steps: Steps, category: str, measured: Floats, forms: list[Rates]) -> _Sides:
    """From the fitted rates, each form scaled to the measured time."""
    idle = _nobody(measured)
    both, prefill, decode = (
        features(learned.model, category, a, b, with_logits=learned.with_logits)
        for a, b in ((steps.prefill, steps.decode), (steps.prefill, idle), (idle, steps.decode))
    )
    alone = [(_share(form, prefill, both), _share(form, decode, both)) for form in forms]
    (p, p_error), (d, d_error) = alone[0]
    spread, misfit = forms[0].spread, forms[0].misfit
    return _Sides(
        prefill=measured * p,
        decode=measured * d,
        prefill_most=measured * np.max([form[0][0] for form in alone], axis=0),
        decode_most=measured * np.max([form[1][0] for form in alone], axis=0),
        # what the rates leave open, the step's own noise on the part that is left, the model's on the part alone
        prefill_error=measured * np.sqrt(p_error**2 + (spread * (1 - p)) ** 2 + (misfit * p) ** 2),
        decode_error=measured * np.sqrt(d_error**2 + (spread * (1 - d)) ** 2 + (misfit * d) ** 2),
    )


def _share(form: Rates, part: Features, whole: Features) -> tuple[Floats, Floats]:
    """T(part)/T(whole) and its standard error; both times hang on the same rates, so their errors largely cancel."""
    total, _ = form.predict(whole)
    some, _ = form.predict(part)
    ratio = np.divide(some, total, out=np.zeros_like(total), where=total > 0)
    error = form.contrast(part, whole, ratio)
    return np.clip(ratio, 0, 1), np.divide(error, total, out=np.zeros_like(total), where=total > 0)


def _unknown_sides(steps: Steps, measured: Floats) -> _Sides:
    """Nothing to go by: between "all shared" (each alone takes it all) and "nothing shared" (by rows)."""
    prefill, decode = (np.asarray(load.tokens, dtype=np.float64) for load in (steps.prefill, steps.decode))
    by_rows = prefill / np.maximum(prefill + decode, 1)
    zero = np.zeros_like(measured)
    return _Sides(
        prefill=measured * (1 + by_rows) / 2, decode=measured * (2 - by_rows) / 2,
        prefill_most=measured, decode_most=measured, prefill_error=zero, decode_error=zero,
    )  # fmt: skip


def _unsure(steps: Steps, category: str) -> NDArray[np.bool_]:
    """Steps whose attention cannot be modelled: a label that gives no context (k ≥ q, so Σk = 0 is no context)."""
    loads = (steps.prefill, steps.decode)
    missing = [(np.asarray(load.tokens) > 0) & (np.asarray(load.kv_tokens) <= 0) for load in loads]
    return (missing[0] | missing[1]) & (category == "attention")


def _chosen(where: NDArray[np.bool_], these: _Sides, else_those: _Sides) -> _Sides:
    names = [item.name for item in fields(_Sides)]
    return _Sides(**{name: np.where(where, getattr(these, name), getattr(else_those, name)) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """Steps of one phase near each mixed step: `pure` of them, and (mixed steps, MOST_MATCHES) indices, −1 for none."""

    pure: Steps
    index: Integers


def _near_steps(learned: Learned, steps: Steps) -> dict[str, _Near]:
    """Per phase, the steps of that phase alone which are near the mixed steps in rows and in context."""
    if learned.pure is None:
        return {}
    found = {}
    asked = np.flatnonzero(steps.mixed)
    for side in ("prefill", "decode"):
        pure = learned.pure.pick(np.asarray(getattr(learned.pure, side).tokens) > 0)
        found[side] = _Near(pure=pure, index=_nearest(_pick(getattr(steps, side), asked), getattr(pure, side)))
    return found


def _nearest(load: PhaseLoad, near: PhaseLoad) -> Integers:
    """For each step of `load`, up to MOST_MATCHES of `near` within NEAR in rows and context, closest context first."""
    rows, context = (np.asarray(getattr(load, name), dtype=np.float64) for name in ("tokens", "kv_tokens"))
    near_rows, near_context = (np.asarray(getattr(near, name), dtype=np.float64) for name in ("tokens", "kv_tokens"))
    found = np.full((len(rows), MOST_MATCHES), -1, dtype=np.int64)
    order = np.lexsort((near_context, near_rows))
    ordered = near_rows[order]
    firsts = np.searchsorted(ordered, rows * (1 - NEAR), side="left")
    lasts = np.searchsorted(ordered, rows * (1 + NEAR), side="right")
    for i, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        close = order[first:last]
        distance = np.abs(near_context[close] / max(context[i], 1) - 1)
        close = close[np.argsort(distance, kind="stable")[: min(MOST_MATCHES, int((distance <= NEAR).sum()))]]
        found[i, : len(close)] = close
    return found


def _match(
    learned: Learned, steps: Steps, category: str, sides: _Sides, near: Mapping[str, _Near]
) -> NDArray[np.bool_]:
    """Put measured times of near steps of one phase in place of the model's; returns which decode sides were."""
    form = learned.rates[category][0]
    measured = steps.measured[category].astype(np.float64)
    found = np.zeros(len(measured), dtype=bool)
    asked = np.flatnonzero(steps.mixed)
    for side, close in near.items():
        if category not in close.pure.measured or not len(asked) or not len(close.pure.measured[category]):
            continue
        wanted = _alone_time(learned, category, form, _pick(getattr(steps, side), asked), side)
        there = _alone_time(learned, category, form, getattr(close.pure, side), side)
        # each near step's time, corrected by the model for what it differs in size
        usable = (close.index >= 0) & (close.pure.measured[category][close.index] > 0)
        scaled = close.pure.measured[category][close.index] * wanted[:, None] / np.maximum(there[close.index], 1e-9)
        count = usable.sum(axis=1)
        time = np.zeros(len(measured))
        time[asked[count > 0]] = np.nanmedian(np.where(usable, scaled, np.nan)[count > 0], axis=1)
        time[_unsure(steps, category)] = 0
        fewer = np.zeros(len(measured))  # the median of several has less noise than one
        fewer[asked[count > 0]] = 1 / np.sqrt(count[count > 0])
        hit = time > 0
        for name in (side, f"{side}_most"):
            setattr(sides, name, np.where(hit, time, getattr(sides, name)))
        doubt = np.hypot(form.spread * time * fewer, form.spread * np.maximum(measured - time, 0))
        setattr(sides, f"{side}_error", np.where(hit, doubt, getattr(sides, f"{side}_error")))
        if side == "decode":
            found = hit
    return found


def _alone_time(learned: Learned, category: str, form: Rates, load: PhaseLoad, side: str) -> Floats:
    idle = _nobody(np.asarray(load.tokens, dtype=np.float64))
    pair = (load, idle) if side == "prefill" else (idle, load)
    return form.predict(features(learned.model, category, *pair, with_logits=learned.with_logits))[0]


def _nobody(like: Floats) -> PhaseLoad:
    zero = np.zeros(len(like))
    return replace(IDLE, reqs=zero, tokens=zero, kv_tokens=zero, qq=zero, qk=zero, sampled_rows=zero)


def _pick(load: PhaseLoad, index: NDArray[np.bool_] | Integers) -> PhaseLoad:
    size = np.shape(load.tokens)

    def chosen(value: Quantity) -> Quantity:
        picked: Floats = np.broadcast_to(np.asarray(value), size)[index]
        return picked

    plain = {
        item.name: chosen(getattr(load, item.name)) for item in fields(load) if item.name not in ("prompts", "windowed")
    }
    windowed = {window: (chosen(seen), chosen(pairs)) for window, (seen, pairs) in load.windowed.items()}
    return PhaseLoad(prompts=load.prompts, windowed=windowed, **plain)
