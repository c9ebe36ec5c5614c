"""From hidden states to a token: the vocabulary product and the sampler. Both see sampled rows only."""

from __future__ import annotations

from analyzers.costs.cost import Cost, Quantity
from analyzers.costs.gemm import gemm


def logits(
    sampled_rows: Quantity, hidden: float, vocab: float, *, activation_bytes: float = 2, weight_bytes: float = 2
) -> Cost:
    """One product with the vocabulary matrix. A prompt that does not end in this step has no sampled row."""
    return gemm(
        sampled_rows, hidden, vocab, a_bytes=activation_bytes, weight_bytes=weight_bytes, out_bytes=activation_bytes
    )


def sampling(sampled_rows: Quantity, vocab: float, *, passes: float = 2, element_bytes: float = 4) -> Cost:
    """`passes` over the logits, which engines widen to 32 bits: a maximum, or scaling and a draw."""
    return Cost(flops=passes * sampled_rows * vocab, bytes=passes * sampled_rows * vocab * element_bytes)


def embedding(tokens: Quantity, hidden: float, *, element_bytes: float = 2) -> Cost:
    """One row of the table read and written per token."""
    return Cost(flops=0 * tokens, bytes=2 * tokens * hidden * element_bytes)
