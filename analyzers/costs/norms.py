"""Work that streams over activations: norms, activations, rotary embeddings, copies. Operations hardly matter here."""

from __future__ import annotations

from analyzers.costs.cost import Cost, Quantity, present


def rms_norm(rows: Quantity, width: float, *, element_bytes: float = 2, residual: bool = True) -> Cost:
    """Square, sum, scale, weight: 4 operations per element, one more with the residual added on the way in.

    Reads the input, writes the output; with a residual, reads and writes that too. The weight is width elements.
    """
    streams = 4 if residual else 2
    return Cost(
        flops=rows * width * (5 if residual else 4),
        bytes=(rows * streams + 1.0) * width * element_bytes * present(rows),
    )


def layer_norm(rows: Quantity, width: float, *, element_bytes: float = 2) -> Cost:
    """Mean, variance, scale, weight and bias: 7 operations per element; input and output, weight and bias."""
    return Cost(flops=7 * rows * width, bytes=(rows * 2 + 2.0) * width * element_bytes * present(rows))


def activation(rows: Quantity, width: float, *, gated: bool, element_bytes: float = 2) -> Cost:
    """One output of `width` per row; a gated one reads twice that. About 5 operations for the exponential form."""
    return Cost(flops=rows * width * (6 if gated else 5), bytes=rows * width * (3 if gated else 2) * element_bytes)


def rotary(rows: Quantity, heads: int, rotary_dim: int, *, element_bytes: float = 2) -> Cost:
    """Queries and keys rotated in place: 3 operations per element, read and written."""
    width = heads * rotary_dim
    return Cost(flops=3 * rows * width, bytes=2 * rows * width * element_bytes)


def stream(rows: Quantity, width: float, *, passes: float = 2, element_bytes: float = 2) -> Cost:
    """`passes` reads or writes of `rows` × `width` elements, one operation each."""
    return Cost(flops=rows * width, bytes=passes * rows * width * element_bytes)
