"""Seeded pseudo-text of exact length.

Lengths are in tokens of the built-in byte-level tokenizer, where an ASCII letter is one token. A real model's
tokenizer packs about four such letters into a token, so the same text is about a quarter as many tokens there.
"""

from __future__ import annotations

from random import Random

_ONSETS = ("b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "ch", "pl", "st", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "n", "r", "s", "t", "l", "m")


def stream(seed: int, *path: object) -> Random:
    """A random stream of its own for one piece of a plan, so that adding a session leaves the others as they were.

    Seeded by text, which Python hashes with SHA-512: the same in every process and on every machine.
    """
    return Random("/".join(str(part) for part in (seed, *path)))  # noqa: S311


def words(random: Random, length_tokens: int) -> str:
    """Lower-case words, `length_tokens` ASCII characters in all; no space at either end."""
    parts: list[str] = []
    length = 0
    while length <= length_tokens:  # counts a space behind every word, the last one too
        word = "".join(
            _pick(random, _ONSETS) + _pick(random, _VOWELS) + _pick(random, _CODAS)
            for _ in range(1 + _below(random, 3))
        )
        parts.append(word)
        length += len(word) + 1
    text = " ".join(parts)[:length_tokens]
    return text[:-1] + "s" if text.endswith(" ") else text


def spread(random: Random, mean: int, jitter: float) -> int:
    """`mean`, or with jitter > 0 a value spread evenly over mean·(1 ± jitter), at least 1 where the mean is."""
    if jitter == 0.0 or mean == 0:
        return mean
    return max(1, round(mean * (1.0 + jitter * (2.0 * random.random() - 1.0))))


def _below(random: Random, bound: int) -> int:
    # Only Random.random() is promised to give the same values in every version of Python.
    return int(random.random() * bound)


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return choices[_below(random, len(choices))]
