"""Numbers and tables for a terminal: units are chosen here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from traces.printable import printable

DASH = "–"


def duration(ns: float | None) -> str:
    """Nanoseconds as a person reads them."""
    if ns is None:
        return DASH
    for limit, unit, digits in ((1e3, 1.0, 0), (1e6, 1e3, 1), (1e9, 1e6, 2), (6e11, 1e9, 2)):
        if abs(ns) < limit:
            return f"{ns / unit:.{digits}f} {({1.0: 'ns', 1e3: 'µs', 1e6: 'ms', 1e9: 's'})[unit]}"
    return f"{ns / 6e10:.1f} min"


def count(value: float | None) -> str:
    """A count with separators."""
    return DASH if value is None else f"{value:,.0f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of 1 as percent."""
    return DASH if share is None else f"{100 * share:.{digits}f} %"


def rate(value: float | None) -> str:
    """A number per second with one decimal."""
    return f"{value:.1f}" if value else DASH


def ratio(value: float | None) -> str:
    """A ratio with two decimals."""
    return DASH if value is None else f"{value:.2f}×"


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where either is not known or whole is 0."""
    return None if part is None or not whole else part / whole


def shown(text: str | None, limit: int = 200) -> str:
    """Text from a recording, safe for a terminal and shortened in the middle."""
    if text is None:
        return DASH
    clean = printable(text)
    if len(clean) <= limit:
        return clean
    return clean[: limit // 2 - 1] + "…" + clean[-(limit - limit // 2) :]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Aligned lines: the first `left` columns to the left, the rest (numbers) to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        parts = [text.ljust(widths[i]) if i < left else text.rjust(widths[i]) for i, text in enumerate(row)]
        lines.append((indent + "  ".join(parts)).rstrip())
    return lines
