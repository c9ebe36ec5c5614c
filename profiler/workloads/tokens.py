"""Token ids that any model takes, made from a seed: equal names give equal text, different names different text."""

from __future__ import annotations

from hashlib import shake_256

# Token ids every vocabulary has and none reserves: past the few special tokens at the bottom, below the smallest top.
FIRST_ID, N_IDS = 16, 224
_TO_IDS = bytes(FIRST_ID + value % N_IDS for value in range(256))


def token_text(seed: int, *path: object, length: int) -> bytes:
    """`length` token ids, a byte each. A shorter text of the same name is the beginning of a longer one."""
    name = "/".join(str(part) for part in (seed, *path)).encode()
    return shake_256(name).digest(length).translate(_TO_IDS)


def digits(number: int, width: int) -> bytes:
    """`number` as `width` token ids, lowest digit first: numbers below N_IDS ** width differ, neighbours at once."""
    found = bytearray()
    for _ in range(width):
        number, digit = divmod(number, N_IDS)
        found.append(FIRST_ID + digit)
    return bytes(found)


def digits_for(count: int) -> int:
    """Digits that tell `count` numbers apart."""
    width = 1
    while N_IDS**width < count:
        width += 1
    return width
