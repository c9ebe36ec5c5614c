"""Mixture of experts under uniform routing."""

from __future__ import annotations

import numpy as np

from analyzers.costs.cost import Cost, Quantity


def expected_experts(tokens: Quantity, experts: int, top_k: int) -> Quantity:
    """Distinct experts that `tokens` tokens reach: E·(1 − (1 − k/E)^T).

    Uniform, independent routing is assumed; real routers are skewed and reach fewer. Measured routing wins where known.
    """
    return experts * (1 - np.power(1 - top_k / experts, tokens))


def experts_mlp(
    tokens: Quantity,
    *,
    hidden: int,
    width: int,
    experts: int,
    top_k: int,
    gated: bool = True,
    activation_bytes: float = 2,
    weight_bytes: float = 2,
    reached: Quantity | None = None,
) -> Cost:
    """One layer's routed experts for `tokens` tokens, each sent to `top_k` of `experts`.

    `reached` is the number of distinct experts where routing was measured. Each reached expert's weights are read once;
    every token's input is read and its output written once per expert, and the wide middle is written and read.
    """
    matrices = 3 if gated else 2
    weights = matrices * hidden * width
    distinct = expected_experts(tokens, experts, top_k) if reached is None else reached
    rows = tokens * top_k
    middle = (3 if gated else 2) * width  # up (and gate) written, then one product of them read
    return Cost(
        flops=2 * rows * weights,
        bytes=distinct * weights * weight_bytes + rows * (2 * hidden + middle) * activation_bytes,
    )
