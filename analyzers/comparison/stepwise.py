"""Time of steps at matched size: by the engine's ledger (every pass), and by the device (what was recorded)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from analyzers.comparison.metric import NEITHER, Metric
from analyzers.comparison.sample import Ratio, nameless
from analyzers.comparison.served import pass_starts, shortest_ns
from analyzers.comparison.sides import Part, Side
from analyzers.comparison.strata import BLOCKS, KINDS, drafts, matched, per_output_token, with_strata

LEAST_MATCHED = 0.25  # of a side's time of a kind; below, the steps that match are not what the kind is like


def engine_steps(base: Side, cand: Side) -> Iterator[Metric]:
    """Schedule to result of every pass's steps, by kind."""
    reason = next(
        (
            part.withheld["ledger_steps"]
            for side in (base, cand)
            for part in side.parts
            if "ledger_steps" in part.withheld
        ),
        None,
    )
    if reason:
        yield Metric(metric_id="steps.engine", group="steps", title="steps of the engine", unit="ns", withheld=reason)
        return
    frames = [[item.part.of_pass(item.name, item.part.read("ledger")) for item in side.passes] for side in (base, cand)]
    if any(data.height == 0 for side in frames for data in side) or not all(frames):
        return  # no step ledger: nothing is missing that the recording could have told
    made = [[with_strata(data) for data in side] for side in frames]
    starts, length = (pass_starts(base), pass_starts(cand)), shortest_ns((base, cand))
    metrics = [metric for kind in KINDS for metric in kind_metrics(kind, made[0], made[1], source="engine")]
    for metric in (*metrics, *_sizes(made[0], made[1])):
        yield replace(metric, starts=starts, shortest_ns=length)


def _sizes(base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame]) -> Iterator[Metric]:
    """How large steps are: what chunk size, batch limits and the load make of them. Neither way is better."""
    for column, name, title in (
        ("prefill_tokens", "prefill_tokens_per_step", "prefill tokens of a step with prefill"),
        ("decode_reqs", "decode_reqs_per_step", "decoding requests of a step with any"),
    ):
        sides = [[data.filter(pl.col(column) > 0).with_columns(one=1) for data in side] for side in (base, cand)]
        if all(data.height for side in sides for data in side):
            made = [[_blocked(data, column, "one") for data in side] for side in sides]
            yield Metric(
                metric_id=f"steps.engine.{name}", group="steps", title=title, unit="tokens" if "tokens" in name else "requests",
                better=NEITHER, base=made[0], cand=made[1], units="blocks of steps",
            )  # fmt: skip


def kind_metrics(
    kind: str, base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame], *, source: str
) -> Iterator[Metric]:
    """Time of steps of one kind and like size; decode steps per accepted token, so that speculation compares."""
    sides = [[data.filter(pl.col("kind") == kind) for data in side] for side in (base, cand)]
    if not any(data.height for side in sides for data in side):
        return
    every = [*sides[0], *sides[1]]
    per_token = kind == "decode" and per_output_token(every)
    metric_id, title = f"steps.{source}.{kind}", f"{kind} step ({source}){' per output token' if per_token else ''}"
    reason, found = None, None
    if kind in ("decode", "mixed") and not per_output_token(every) and drafts(every):
        reason = "tokens were drafted, and how many were accepted is not recorded"
    else:
        found = matched(sides[0], sides[1], per_token=per_token)
        if found is None:
            reason = "no steps of like size on both sides"
        elif found.share < LEAST_MATCHED:
            reason = f"only {100 * found.share:.0f} % of the time of these steps is in steps of like size"
    if found is None or reason:
        yield Metric(metric_id=metric_id, group="steps", title=title, unit="ns", withheld=reason)
        return
    yield Metric(
        metric_id=metric_id, group="steps", title=title, unit="ns", base=found.base, cand=found.cand, units="blocks of steps",
        note=f"{100 * found.share:.0f} % of the time matched",
    )  # fmt: skip


def recorded_steps(part: Part) -> pl.DataFrame:
    """Steps of a recorded run with strata."""
    return with_strata(part.read("steps"))


def device_steps(base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame]) -> Iterator[Metric]:
    """Device time of recorded steps by kind."""
    for kind in KINDS:
        yield from kind_metrics(kind, base, cand, source="device")


def device_phases(base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame]) -> Iterator[Metric]:
    """What a token costs in either phase."""
    for phase, tokens, title in (
        ("prefill", "prefill_tokens", "device time per prefill token"), ("decode", "accepted_tokens", "device time per accepted token"),
    ):  # fmt: skip
        yield from _phase(phase, tokens, title, base, cand)


def _phase(
    phase: str, tokens: str, title: str, base: Sequence[pl.DataFrame], cand: Sequence[pl.DataFrame]
) -> Iterator[Metric]:
    sides, reason = [], None
    for side in (base, cand):
        rows = [data.filter(pl.col(f"{phase}_ns") > 0) for data in side]
        if any(data.height == 0 for data in rows):
            return
        if phase == "decode":
            rows = [_output_tokens(data) for data in rows]
        if any(data[tokens].null_count() for data in rows):
            reason = "tokens were drafted, and how many were accepted is not recorded"
        sides.append(rows)
    metric_id = f"phases.{phase}_ns_per_token"
    if reason:
        yield Metric(metric_id=metric_id, group="phases", title=title, unit="ns", withheld=reason)
        return
    made = [[_blocked(data, f"{phase}_ns", tokens) for data in side] for side in sides]
    yield Metric(
        metric_id=metric_id, group="phases", title=title, unit="ns", base=made[0], cand=made[1], units="blocks of steps",
        note="whatever the batch and the context were",
    )  # fmt: skip


def _output_tokens(data: pl.DataFrame) -> pl.DataFrame:
    """A decoding request's output where the engine counted it; without drafts it is a token each. A mixed step's counted
    tokens include the first of a finished prefill, so there too a token each is taken."""
    plain = pl.col("decode_tokens") <= pl.col("decode_reqs")
    return data.with_columns(
        accepted_tokens=pl.when(plain.fill_null(value=True))
        .then(pl.col("decode_reqs"))
        .otherwise(pl.col("accepted_tokens"))
    )


def _blocked(data: pl.DataFrame, numerator: str, denominator: str) -> Ratio:
    """Σ / Σ by block of consecutive steps."""
    sums = (
        data.with_columns(part=(pl.int_range(pl.len()) * BLOCKS // pl.len()))
        .group_by("part").agg(pl.col(numerator).sum(), pl.col(denominator).sum()).sort("part")
    )  # fmt: skip
    return Ratio(
        numerator=sums[numerator].to_numpy().astype(np.float64), denominator=sums[denominator].to_numpy().astype(np.float64),
        n=data.height, keys=nameless(sums.height),
    )  # fmt: skip
