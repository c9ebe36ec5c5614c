"""Counters that wrap or start anew, made into totals that only grow."""

from __future__ import annotations


class Unwrapped:
    """The total behind a counter of integers that wraps at `modulus` (None: it does not).

    A reading below the one before is a wrap where the counter stood in the upper half of its range, else it was set
    back, for example with its driver: then what it shows is what came since, and what was lost meanwhile stays lost.
    """

    def __init__(self, modulus: int | None) -> None:
        self._modulus = modulus
        self._offset = 0
        self._last: int | None = None
        self.wraps = self.resets = 0

    def total(self, reading: int) -> int:
        """The total at this reading, in the counter's unit."""
        last = self._last
        if last is not None and reading < last:
            if self._modulus is not None and self._modulus // 2 <= last < self._modulus:
                self._offset += self._modulus
                self.wraps += 1
            else:
                self._offset += last
                self.resets += 1
        self._last = reading
        return self._offset + reading


class Rate:
    """Units per second between one reading of a counter and the next; None at the first, and where it went back."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def per_second(self, reading: int, at_ns: int) -> float | None:
        """`at_ns`: when it was read, by a clock that does not jump."""
        before, self._last = self._last, (reading, at_ns)
        if before is None or reading < before[0] or at_ns <= before[1]:
            return None
        return (reading - before[0]) * 1e9 / (at_ns - before[1])
