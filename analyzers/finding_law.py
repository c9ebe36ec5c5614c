"""How far the steps of a run tell apart what a step costs whatever it does, and what each request in it costs.

Where every step holds about as many requests as the others, a high base with cheap requests explains their times as well
as a low base with dear ones. The law (analyzers/step_law.py) has to choose; a prediction must not. So every base is tried:
those stay whose best fit is no worse than the best of all by more than its noise explains (95 %, the profile likelihood).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzers.step_law import WORK, Floats, solved

_TRIED = 81
_CHI_95 = 3.84  # of one free price
_REFITS = 2
_EXACT = 1e-7  # share of the times' squares that no fit can be asked to explain: rounding to whole ns


def base_range(steps: pl.DataFrame) -> tuple[float, float]:
    """The lowest and the highest base of a step that explain the times, ns. Columns as in sql/finding_steps.sql."""
    time = steps["step_ns"].to_numpy().astype(np.float64)
    work = steps.select(WORK).to_numpy().astype(np.float64)
    scale = work.max(axis=0, initial=0.0)
    work = work / np.where(scale > 0, scale, 1.0)
    bases = np.linspace(0, float(np.quantile(time, 0.9)), _TRIED)
    weight = np.maximum(time, np.median(time) / 10 + 1) ** -2.0
    squares = _squares(work, time, weight, bases)
    for _ in range(_REFITS):  # long steps are off by more: weigh by what is expected, not by what happened
        at = int(np.argmin(squares[0]))
        weight = np.maximum(bases[at] + work @ squares[1][at], np.median(time) / 10 + 1) ** -2.0
        squares = _squares(work, time, weight, bases)
    least = float(squares[0].min())
    whole = float((weight * time * time).sum())
    allowed = least + max(_CHI_95 * least / max(len(time) - len(WORK) - 1, 1), _EXACT * whole)
    kept = bases[squares[0] <= allowed]
    step = bases[1] - bases[0]
    return max(0.0, float(kept.min()) - step / 2), float(kept.max()) + step / 2


def _squares(work: Floats, time: Floats, weight: Floats, bases: Floats) -> tuple[Floats, Floats]:
    """What each base leaves unexplained at its best prices (weighted squares), and these prices, a row each."""
    rest = time[:, None] - bases
    gram = np.broadcast_to(work.T @ (weight[:, None] * work), (len(bases), len(WORK), len(WORK)))
    moment = ((weight[:, None] * work).T @ rest).T
    prices = solved(gram, moment)
    left = rest - work @ prices.T
    return (weight[:, None] * left * left).sum(axis=0), prices
