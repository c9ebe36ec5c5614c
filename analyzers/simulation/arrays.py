"""What goes into the machine. Its working arrays are two-dimensional, rows named by constants in machine.py:

    load     per request: prompt and output tokens, the turn that follows (−1: none) and the wait before it, whether it is
             refused, where its blocks begin and end in `blocks`
    lives    per request: times (−1: not yet), tokens in the cache now and at most, tokens generated, prompt tokens that
             others had computed, preemptions, pages of its own, blocks it shares
    blocks   per block of a prompt: id of its text, whether the request uses the common one
    cache    per id: whether it is there, its users, and its neighbours among those without users, the oldest first
    batch    per running request: which, and its tokens in this step
    queue    the ring of waiting requests; the heap of arrivals to come, times and requests

Few plain arrays instead of many named ones: what a compiled function takes decides how long it takes to compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Load(NamedTuple):
    """What is asked of a server; one entry per request."""

    prompt: Ints  # tokens
    output: Ints  # tokens, at least 1
    follows: Ints  # the turn that starts when this one is done; −1: none, or it has an arrival of its own
    wait_ns: Ints  # between the two
    refused: NDArray[np.bool_]  # would never fit
    blocks_at: Ints  # n + 1 offsets into `blocks`
    blocks: Ints  # ids of the prompts' full blocks, from 0


class Costs(NamedTuple):
    """Of a step; times are divided by the share of the roof that is reached."""

    kernels: Floats  # (compute and memory, kernels, features): ns
    factors: Floats  # ns of communication per token; share of the experts one token misses; replicas that share them
    windows: Ints  # sliding windows, tokens
