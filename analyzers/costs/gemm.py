"""Matrix products: C[M,N] = A[M,K] · B[K,N] (+ bias)."""

from __future__ import annotations

from analyzers.costs.cost import Cost, Quantity, present


def gemm(
    m: Quantity,
    k: float,
    n: float,
    *,
    a_bytes: float = 2,
    weight_bytes: float = 2,
    out_bytes: float = 2,
    bias: bool = False,
) -> Cost:
    """2·M·K·N operations (+ M·N with a bias); M·K·a + K·N·w + M·N·o bytes, each with its own element size.

    `weight_bytes` is per weight and includes a quantized weight's scales. Nothing is read where M is 0.
    """
    used = present(m)
    flops = 2 * m * k * n + (m * n if bias else 0)
    weight = (k * n * weight_bytes + (n * out_bytes if bias else 0)) * used
    return Cost(flops=flops, bytes=m * k * a_bytes + weight + m * n * out_bytes)
