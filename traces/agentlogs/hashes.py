"""Names of prompt parts as 64-bit numbers: of a part and all before it, and of ids that mean something in one place only."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no power of it is 0 modulo 2^64


def chained(content: Ints) -> Ints:
    """Names of every prefix of the parts: h_i = sum of content_k * factor^k for k <= i, modulo 2^64.

    The parts' own names are cryptographic hashes, so two prefixes that differ have equal names by chance only.
    """
    powers = np.cumprod(np.full(len(content), _FACTOR, dtype=np.uint64))
    return np.cumsum(mixed(content).view(np.uint64) * powers, dtype=np.uint64).view(np.int64)


def mixed(values: Ints) -> Ints:
    """Values spread over all 64 bits, one to one."""
    found = values.view(np.uint64).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found ^= found >> np.uint64(shift)
        found *= np.uint64(factor)
    found ^= found >> np.uint64(31)
    return found.view(np.int64)


def local_ids(ids: Ints, scope: str) -> Ints:
    """Ids that mean something within `scope` only, as names that meet no other scope's; '' leaves them as they are."""
    if not scope:
        return ids
    salt = np.frombuffer(hashlib.blake2b(scope.encode(), digest_size=8).digest(), dtype=np.int64)
    return mixed(mixed(ids) ^ salt)
