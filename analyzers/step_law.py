"""What a step of the engine costs, learned from its own ledger: a base, and prices of what it has to do.

    step = base + a · prefill tokens + b · prefill pairs + c · decode tokens + d · decode context,    none below zero

A pair is a token and a token it looks back on. The prices are those of this run on this machine: they need no model and no
peaks. How sure they are comes from fitting again on steps drawn with repetition.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WORK = ("prefill_tokens", "prefill_pairs", "decode_tokens", "decode_context")  # columns of sql/finding_steps.sql
LEAST_STEPS = 12  # fewer tell nothing of five prices
DRAWS = 200
REWEIGHTED = 3  # fits whose times weigh the steps of the next
MOST_BLOCKS = 400  # runs of steps that are drawn; up to so many steps each is one of its own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLaw:
    """`prices`: ns of a step's base and of one unit of each of WORK. `draws`: the same of every redrawn fit, a row each."""

    prices: Floats
    draws: Floats

    def share(self, amounts: Floats, of: Floats) -> tuple[float, Floats]:
        """What `amounts` (steps, then units of WORK) cost as a share of what `of` does; and by every draw."""
        whole, drawn = float(self.prices @ of), self.draws @ of
        by_draw: Floats = np.divide(self.draws @ amounts, drawn, out=np.zeros(len(drawn)), where=drawn > 0)
        return (float(self.prices @ amounts) / whole if whole > 0 else 0.0), by_draw


def learn(steps: pl.DataFrame, seed: int = 0) -> StepLaw | None:
    """The law of steps with columns step_ns and WORK; None where they are too few to tell."""
    if steps.height < LEAST_STEPS:
        return None
    time = steps["step_ns"].to_numpy().astype(np.float64)
    asked = np.column_stack([np.ones(steps.height), steps.select(WORK).to_numpy().astype(np.float64)])
    scale = asked.max(axis=0)
    scale[scale <= 0] = 1
    asked /= scale
    blocks = min(steps.height, MOST_BLOCKS)
    random = np.random.default_rng(seed)  # the same run gives the same interval
    drawn = random.multinomial(blocks, np.full(blocks, 1 / blocks), size=DRAWS).astype(np.float64)
    weight = np.ones(steps.height)
    for _ in range(REWEIGHTED):  # what disturbs a step stretches it: long steps are off by more
        prices = solved(*(part.sum(axis=0, keepdims=True) for part in _sums(asked, time, weight, blocks)))[0]
        weight = np.maximum(asked @ prices, np.median(time) / 10 + 1) ** -2
    gram, moment = _sums(asked, time, weight, blocks)
    weights = np.vstack([np.ones(blocks), drawn])
    found = solved(np.einsum("wb,bij->wij", weights, gram), weights @ moment) / scale
    return StepLaw(prices=found[0], draws=found[1:])


def _sums(x: Floats, y: Floats, weight: Floats, blocks: int) -> tuple[Floats, Floats]:
    """Weighted x'x and x'y of runs of consecutive steps: (blocks, columns, columns) and (blocks, columns)."""
    starts = np.linspace(0, len(y), blocks, endpoint=False).astype(np.int64)
    columns = x.shape[1]
    gram = np.empty((blocks, columns, columns))
    for i, j in itertools.product(range(columns), repeat=2):
        gram[:, i, j] = np.add.reduceat(weight * x[:, i] * x[:, j], starts)
    return gram, np.add.reduceat(x * (weight * y)[:, None], starts)


def solved(gram: Floats, moment: Floats) -> Floats:
    """Non-negative least squares, once for every x'x in `gram` and x'y in `moment`; a row of prices each.

    The best of all subsets of columns whose plain solution has no negative price is the non-negative optimum: with five
    columns that is 31 small solutions, and exact.
    """
    count, columns = moment.shape
    best = np.zeros((count, columns))
    gained = np.zeros(count)  # how much of y'y a solution explains
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            at = list(chosen)
            part, wanted = gram[:, at][:, :, at], moment[:, at]
            trace = np.trace(part, axis1=1, axis2=2)[:, None, None]
            kept = part + (1e-12 * trace + 1e-300) * np.eye(size)  # columns that are alike, or empty, stay solvable
            solution = np.linalg.solve(kept, wanted[:, :, None])[:, :, 0]
            explained = 2 * (solution * wanted).sum(1) - np.einsum("wi,wij,wj->w", solution, part, solution)
            better = (solution >= 0).all(axis=1) & (explained > gained * (1 + 1e-12))
            best[better] = 0
            best[np.ix_(better, at)] = solution[better]
            gained[better] = explained[better]
    return best
