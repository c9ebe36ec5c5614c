"""What the time of one category of kernels depends on, as numbers per step: the regressors of costs.rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzers.costs.attention import PhaseLoad
from analyzers.costs.cost import Cost
from analyzers.costs.model import IDLE, MODELLED, pieces, step_cost
from analyzers.costs.shape import ModelShape

Floats = NDArray[np.float64]

BYTES, FLOPS = 1, 2  # columns of `joint` that a roof compares
# Rows a GEMM may take at once before it reads its weights again; 0: it reads them once for all.
BLOCKS = (0, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """`joint` (n, 3): presence, bytes, FLOPs of all rows together. `own` (n, k): terms of each phase by itself.

    `reread` (n, len(BLOCKS)): bytes added to those of `joint` for each block size. `launches`: kernels per step, NaN
    where unknown. Everything is 0 where there are no rows.
    """

    joint: Floats
    own: Floats
    reread: Floats
    launches: float = float("nan")


def features(
    model: ModelShape | None,
    category: str,
    prefill: PhaseLoad = IDLE,
    decode: PhaseLoad = IDLE,
    *,
    with_logits: bool = False,
    launches: float | None = None,
) -> Features:
    """Features of `category` for arrays of loads. `with_logits`: GEMMs include the vocabulary product.

    `launches` is how many kernels of the category a step has; else it follows from the model where it can. A category
    without a cost model (copies, collectives) goes by rows, and so does everything where the model is not known: rates
    fitted to rows and contexts need no widths.
    """
    rows = np.asarray(prefill.tokens + decode.tokens, dtype=np.float64)
    present = (rows > 0).astype(np.float64)
    known = float("nan") if launches is None else launches
    if category == "attention":
        return Features(
            joint=np.column_stack([present, 0 * rows, 0 * rows]),
            own=_attention(model, prefill, decode),
            reread=np.zeros((len(rows), len(BLOCKS))),
            launches=model.layers if model is not None and launches is None else known,
        )
    if model is not None and category in MODELLED:
        cost = step_cost(model, category, prefill, decode)
        if launches is None and category in {"gemm", "moe"}:
            known = model.layers * len(pieces(model, category, prefill, decode))
        if with_logits and category == "gemm":
            cost = cost + step_cost(model, "logits", prefill, decode)
    else:
        cost = Cost(flops=rows, bytes=rows)
    joint = np.column_stack([present, np.broadcast_to(cost.bytes, rows.shape), np.broadcast_to(cost.flops, rows.shape)])
    return Features(
        joint=joint.astype(np.float64),
        own=np.zeros((len(rows), 0)),
        reread=_reread(model, rows) if model and category == "gemm" else np.zeros((len(rows), len(BLOCKS))),
        launches=known,
    )


def _reread(model: ModelShape, rows: Floats) -> Floats:
    """Weight bytes read beyond the first time, for each block size: once for every further block that is begun."""
    one, two = (step_cost(model, "gemm", PhaseLoad(tokens=float(n))).bytes for n in (1, 2))
    weights = float(2 * one - two)
    again = [np.zeros_like(rows)] + [np.maximum(np.ceil(rows / block) - 1, 0) for block in BLOCKS[1:]]
    return weights * np.column_stack(again)


def _attention(model: ModelShape | None, prefill: PhaseLoad, decode: PhaseLoad) -> Floats:
    """Requests, bytes and FLOPs of each phase; without a model Σk and pairs stand for them."""
    columns = []
    for load, pair in ((prefill, (prefill, IDLE)), (decode, (IDLE, decode))):
        cost = Cost(flops=load.pairs, bytes=load.kv_tokens) if model is None else step_cost(model, "attention", *pair)
        reqs = np.asarray(load.reqs, dtype=np.float64)
        columns += [reqs, np.broadcast_to(cost.bytes, reqs.shape), np.broadcast_to(cost.flops, reqs.shape)]
    return np.column_stack(columns).astype(np.float64)
