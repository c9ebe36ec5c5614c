"""What was recorded of the devices: steps, phases, kernels by category and name, idle time by cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from analyzers.comparison.metric import LOWER, NEITHER, Metric
from analyzers.comparison.roles import Group, groups
from analyzers.comparison.sample import Ratio, nameless
from analyzers.comparison.sides import Part, Side
from analyzers.comparison.stepwise import LEAST_MATCHED, device_phases, device_steps, recorded_steps
from analyzers.comparison.strata import matched

IDLE_BLOCKS = 20  # of a device's window
_LEAST_IDLE = 0.005  # of the window; a cause below that on both sides gets no line
# what each of these rests on, as table health names it
_STEPS = ("steps", "devices", "devices.busy_ns", "steps.busy_ns")
_PHASES = ("steps.kind", "steps.prefill_ns", "steps.decode_ns")
_KERNELS = ("kernels", "kernels.category", "kernels.step_id")
_IDLE = ("devices", "devices.idle_ns", "gaps")
_LOAD = ("no_work", "tool_wait")  # the load's, not the engine's


def recorded(base: Side, cand: Side) -> Iterator[Metric]:
    """Metrics of the recorded windows; one that says why where a side has none or may not use it."""
    sides = [side.recorded for side in (base, cand)]
    ends = [(part.facts["window_start_ns"], part.facts["window_end_ns"]) for side in sides for part in side]
    windows = [end - start for start, end in ends if start is not None and end is not None and end > start]
    for metric in _recorded(sides):
        yield replace(metric, shortest_ns=min(windows, default=None))


def _recorded(sides: Sequence[Sequence[Part]]) -> Iterator[Metric]:
    steps = [[recorded_steps(part) for part in side] for side in sides]
    if not all(side and all(data.height for data in side) for side in steps):
        if any(data.height for side in steps for data in side):
            yield Metric(metric_id="steps.device", group="steps", title="device time of steps", unit="ns",
                         withheld="only one of the sides has steps with device activity")  # fmt: skip
        return
    readers: tuple[tuple[str, str, tuple[str, ...], Callable[[], Iterator[Metric]]], ...] = (
        ("steps", "device time of steps", _STEPS, partial(device_steps, steps[0], steps[1])),
        ("phases", "device time per token", (*_STEPS, *_PHASES), partial(device_phases, steps[0], steps[1])),
        ("categories", "kernels", (*_STEPS, *_KERNELS), partial(_kernels, sides, steps)),
        ("idle", "idle time", _IDLE, partial(_idle, sides)),
    )
    for group, title, names, read in readers:
        reason = _withheld(sides, *names)
        if reason:
            yield Metric(metric_id=f"{group}.device", group=group, title=title, unit="ns", withheld=reason)
        else:
            yield from read()


def _withheld(sides: Sequence[Sequence[Part]], *names: str) -> str | None:
    """The first reason for which one of these numbers is withheld on either side."""
    reasons = (part.withheld[name] for side in sides for part in side for name in names if name in part.withheld)
    return next(reasons, None)


def _kernels(sides: Sequence[Sequence[Part]], steps: Sequence[Sequence[pl.DataFrame]]) -> Iterator[Metric]:
    """Time per step of like size, by category and by kernel."""
    names = [_names(side) for side in sides]
    if not all(data.height for data in names):
        return
    found = groups(names[0], names[1])
    listed = sorted({name for item in found for name in (*item.base, *item.cand)})
    rows = [
        [part.read("kernels", names=listed) for part in side] for side in sides
    ]  # fmt: skip
    categories = sorted({name for data in names for name in data["category"].fill_null("other")})
    for category in categories:
        values = [[_valued(data, own.filter(pl.col("category") == category)) for data, own in zip(each, mine, strict=True)]
                  for each, mine in zip(steps, rows, strict=True)]  # fmt: skip
        yield from _cost(f"categories.{category}", "categories", category, values)
    for item in found:
        yield from _group(item, listed, steps, rows)


def _group(
    item: Group, listed: list[str], steps: Sequence[Sequence[pl.DataFrame]], rows: Sequence[Sequence[pl.DataFrame]]
) -> Iterator[Metric]:
    metric_id = f"kernels.{item.category or 'other'}.{item.title}"
    if not (item.base and item.cand):
        side = "base" if item.base else "candidate"
        yield Metric(metric_id=metric_id, group="kernels", title=item.title, unit="ns",
                     withheld=f"only the {side} has it: {100 * item.share:.1f} % of its busy time")  # fmt: skip
        return
    places = [[listed.index(name) + 1 for name in names] for names in (item.base, item.cand)]
    values = [[_valued(data, own.filter(pl.col("place").is_in(mine))) for data, own in zip(each, given, strict=True)]
              for each, given, mine in zip(steps, rows, places, strict=True)]  # fmt: skip
    note = "" if item.by == "name" else f"by {item.by}: {', '.join(item.base[:2])} → {', '.join(item.cand[:2])}"
    yield from _cost(metric_id, "kernels", item.title, values, note=note)


def _names(side: Sequence[Part]) -> pl.DataFrame:
    """Of all runs of a side."""
    data = pl.concat([part.read("kernel_names") for part in side])
    return (
        data.group_by("name")
        .agg(pl.col("category", "op_name").first(), pl.col("activities", "busy_ns").sum())
        .sort("name")
    )


def _valued(steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps with `part_ns`: the time of these rows in each."""
    sums = rows.group_by("step_id").agg(part_ns=pl.col("busy_ns").sum())
    return steps.join(sums, on="step_id", how="left", maintain_order="left").with_columns(
        pl.col("part_ns").fill_null(0)
    )


def _cost(
    metric_id: str, group: str, title: str, values: Sequence[Sequence[pl.DataFrame]], note: str = ""
) -> Iterator[Metric]:
    """Time per step, over the strata of all kinds; nothing where a side has none of it in steps of like size."""
    found = matched(values[0], values[1], "part_ns", per_token=False)
    if found is None or found.share < LEAST_MATCHED:
        yield Metric(
            metric_id=metric_id,
            group=group,
            title=title,
            unit="ns",
            withheld="too few steps of like size on both sides",
        )
        return
    if not all(item.point() > 0 for item in (*found.base, *found.cand)):
        return
    told = f"per step, {100 * found.share:.0f} % of the time matched"
    yield Metric(
        metric_id=metric_id, group=group, title=title, unit="ns", base=found.base, cand=found.cand, units="blocks of steps",
        note=f"{note}; {told}" if note else told,
    )  # fmt: skip


def _idle(sides: Sequence[Sequence[Part]]) -> Iterator[Metric]:
    devices = [[part.read("devices") for part in side] for side in sides]
    rows = [[part.read("idle", blocks=IDLE_BLOCKS) for part in side] for side in sides]
    if any(not (data["window_ns"].fill_null(0) > 0).any() for side in devices for data in side):
        return
    reason = _withheld(sides, "gaps.cause")
    if reason:
        yield Metric(metric_id="idle.causes", group="idle", title="idle time by cause", unit="share", withheld=reason)
    causes = [] if reason else sorted({cause for side in rows for data in side for cause in data["cause"]})
    for cause in ("all", *causes):
        made = [
            [_idle_share(own, data, cause) for own, data in zip(mine, each, strict=True)]
            for mine, each in zip(rows, devices, strict=True)
        ]
        if max(item.point() for side in made for item in side) < _LEAST_IDLE:
            continue
        better = NEITHER if cause in _LOAD or cause == "all" else LOWER
        title = "idle time" if cause == "all" else f"idle: {cause}"
        yield Metric(
            metric_id=f"idle.{cause}", group="idle", title=title, unit="share", better=better, base=made[0], cand=made[1],
            units="blocks of time", note="of the window",
        )  # fmt: skip


def _idle_share(rows: pl.DataFrame, devices: pl.DataFrame, cause: str) -> Ratio:
    """Idle time over the devices' windows, by block of them."""
    chosen = rows if cause == "all" else rows.filter(pl.col("cause") == cause)
    window = float(devices["window_ns"].fill_null(0).sum())
    at = chosen["block"].clip(0, IDLE_BLOCKS - 1).to_numpy()
    idle = np.bincount(at, weights=chosen["idle_ns"].to_numpy(), minlength=IDLE_BLOCKS).astype(np.float64)
    return Ratio(
        numerator=idle, denominator=np.full(IDLE_BLOCKS, window / IDLE_BLOCKS), n=rows.height,
        keys=nameless(IDLE_BLOCKS),
    )  # fmt: skip
