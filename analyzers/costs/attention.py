"""Attention over a cache: scores, weighted values, and the bytes of queries, keys, values and outputs.

Per request with q new tokens and a context of k (new ones included), Hq query and Hkv key heads, head sizes dqk, dv:
    operations  2·Hq·pairs·(dqk+dv)
    pairs       query-key pairs under the causal mask: q·k less the triangle of keys that come after their query
    triangle    q²/2 of a prompt's chunk, as other tools take it (method §5); (q² − q)/2, which is exact, of tokens
                that are decoded or verified: nothing for a single one, and half a pair matters beside a few
    bytes       Hq·q·(dqk+dv) activations, Hkv·k·(dqk+dv) of the cache at its own element size

A sliding window changes nothing in this: a window as long as the context gives the same pairs as none.
Shared prefix pages are counted once per request here: the upper end of what a kernel may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyzers.costs.cost import Cost, Quantity

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLoad:
    """What the requests of one phase ask of one step: numbers, or arrays with one entry per step.

    `prompts`: these are chunks of prompts, not decoded or verified tokens, which decides the triangle. `windowed` holds,
    per sliding window (tokens), the sums with each request's context capped to it: (Σk, pairs). Where it lacks a window,
    the cap is applied to the mean request, which is exact for requests of one size.
    """

    reqs: Quantity = 0
    tokens: Quantity = 0  # Σq
    kv_tokens: Quantity = 0  # Σk
    qq: Quantity = 0  # Σq²
    qk: Quantity = 0  # Σq·k
    sampled_rows: Quantity = 0  # rows that get logits
    prompts: bool = False
    windowed: dict[int, tuple[Quantity, Quantity]] = field(default_factory=dict)

    @property
    def pairs(self) -> Quantity:
        """Query-key pairs under the causal mask."""
        return self.qk - triangle(self.qq, self.tokens, prompts=self.prompts)


def triangle(qq: Quantity, tokens: Quantity, *, prompts: bool) -> Quantity:
    """Pairs of new tokens that the causal mask leaves out, from Σq² and Σq."""
    return qq / 2 if prompts else (qq - tokens) / 2


def load_of_requests(
    new_tokens: Ints,
    context_before: Ints,
    *,
    prompts: bool = False,
    sampled: int | None = None,
    windows: tuple[int, ...] = (),
) -> PhaseLoad:
    """The load of one step's requests of one phase: `new_tokens` each, after `context_before` computed ones.

    `prompts` as in PhaseLoad. `sampled` is how many of them get logits; all if not given.
    """
    q, k = new_tokens.astype(np.float64), (new_tokens + context_before).astype(np.float64)
    return PhaseLoad(
        reqs=len(q),
        tokens=float(q.sum()),
        kv_tokens=float(k.sum()),
        qq=float((q * q).sum()),
        qk=float((q * k).sum()),
        sampled_rows=len(q) if sampled is None else sampled,
        prompts=prompts,
        windowed={
            w: (float(_window_kv(q, k, w).sum()), float(_window_pairs(q, k, w, prompts=prompts).sum())) for w in windows
        },
    )


def attention(
    load: PhaseLoad,
    *,
    heads_q: int,
    heads_kv: int,
    dim_qk: int,
    dim_v: int,
    window: int | None = None,
    activation_bytes: float = 2,
    kv_bytes: float = 2,
) -> Cost:
    """One layer's attention for the requests of one phase; `window` caps each query's context."""
    kv_tokens, pairs = _seen(load, window)
    return Cost(
        flops=2 * heads_q * pairs * (dim_qk + dim_v),
        bytes=heads_q * load.tokens * (dim_qk + dim_v) * activation_bytes
        + heads_kv * kv_tokens * (dim_qk + dim_v) * kv_bytes,
    )


def latent_attention(
    load: PhaseLoad, *, heads: int, latent_rank: int, rope_dim: int, activation_bytes: float = 2, kv_bytes: float = 2
) -> Cost:
    """One layer of multi-head latent attention with absorbed weights (DeepSeek-V2, section 2.1): every head attends
    to the same latent of `latent_rank` (+ `rope_dim` for positions), which is key and value at once and read once."""
    width = latent_rank + rope_dim
    return Cost(
        flops=2 * heads * load.pairs * (width + latent_rank),
        bytes=heads * load.tokens * (width + latent_rank) * activation_bytes + load.kv_tokens * width * kv_bytes,
    )


def kv_write(load_tokens: Quantity, *, kv_width: int, activation_bytes: float = 2, kv_bytes: float = 2) -> Cost:
    """Storing `load_tokens` new entries of `kv_width` elements: read once, written once."""
    return Cost(flops=0 * load_tokens, bytes=load_tokens * kv_width * (activation_bytes + kv_bytes))


def _seen(load: PhaseLoad, window: int | None) -> tuple[Quantity, Quantity]:
    """Σk and pairs, contexts capped to `window`."""
    if window is None:
        return load.kv_tokens, load.pairs
    if window in load.windowed:
        return load.windowed[window]
    reqs = np.maximum(load.reqs, 1)
    q, k = np.asarray(load.tokens / reqs, dtype=np.float64), np.asarray(load.kv_tokens / reqs, dtype=np.float64)
    return load.reqs * _window_kv(q, k, window), load.reqs * _window_pairs(q, k, window, prompts=load.prompts)


def _window_kv(q: NDArray[np.float64], k: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Cache entries that some of the last q tokens still see: the first of them reaches window − 1 back."""
    return np.minimum(k, window + q - 1)


def _window_pairs(q: NDArray[np.float64], k: NDArray[np.float64], window: int, *, prompts: bool) -> NDArray[np.float64]:
    """Σ over the q last positions of min(position, window), positions counted from 1; the triangle as without a window."""
    before = k - q
    growing = np.clip(window - before, 0, q)  # tokens whose whole context still fits
    whole = growing * (before + growing) - triangle(growing * growing, growing, prompts=prompts)
    pairs: NDArray[np.float64] = whole + (q - growing) * window
    return pairs
