"""Numbers and tables for a terminal: units are chosen here and nowhere else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from traces.printable import printable

DASH = "–"
_USUAL_WIDTH, _LEAST_WIDTH = 100, 40
_LEAST_TEXT = 16  # characters of a name below which it says nothing


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


def table(
    header: Sequence[str], rows: Sequence[Sequence[str | None]], *, left: int = 1, indent: str = "  ", width: int | None = None,
    drop: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Aligned lines: the first `left` columns to the left, the rest (numbers) to the right.

    Where they are wider than `width` (the terminal's where it is None), the texts on the left are shortened in the middle; if that
    is not enough, columns are left out, those of `drop` first, then from the right, and a last line says which.
    """
    room = (width or terminal_width()) - len(indent)
    cells = [list(header), *[[DASH if text is None else printable(text) for text in row] for row in rows]]
    cells, gone = _fitting(cells, left, room, list(drop))
    widths = _widths(cells)
    lines = []
    for row in cells:
        parts = [text.ljust(widths[i]) if i < left else text.rjust(widths[i]) for i, text in enumerate(row)]
        lines.append((indent + "  ".join(parts)).rstrip())
    if gone:
        lines.append(f"{indent}(no room for: {', '.join(name for name in header if name in gone)})")
    return lines


def terminal_width() -> int:
    """Columns to write for: COLUMNS, else the terminal's, else 100 (a pipe or a file)."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 7 and int(given) > 0:
        return max(int(given), _LEAST_WIDTH)
    columns = shutil.get_terminal_size((_USUAL_WIDTH, 24)).columns if sys.stdout.isatty() else _USUAL_WIDTH
    return max(columns, _LEAST_WIDTH)


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]


def _fitting(cells: list[list[str]], left: int, room: int, drop: list[str]) -> tuple[list[list[str]], list[str]]:
    """Cells that fit into `room` columns as far as can be, and the names of columns that were left out."""
    gone: list[str] = []
    while True:
        widths = _widths(cells)
        excess = sum(widths) + 2 * (len(widths) - 1) - room
        if excess <= 0:
            return cells, gone
        least = [max(_LEAST_TEXT, len(cells[0][i])) for i in range(left)]
        spare = sum(max(0, widths[i] - least[i]) for i in range(left))
        if spare >= excess or len(widths) <= left + 1:
            return _shortened(cells, widths, least, excess), gone
        name = next((item for item in drop if item in cells[0]), cells[0][-1])
        place = len(widths) - 1 - cells[0][::-1].index(name)
        gone.append(name)
        cells = [row[:place] + row[place + 1 :] for row in cells]


def _shortened(cells: list[list[str]], widths: list[int], least: list[int], excess: int) -> list[list[str]]:
    """The widest text columns give up `excess` columns, down to their `least`."""
    limits = widths[: len(least)]
    for _ in range(excess):
        place = max(range(len(limits)), key=lambda i: limits[i] - least[i])
        if limits[place] <= least[place]:
            break
        limits[place] -= 1
    return [[shown(text, limits[i]) if i < len(limits) else text for i, text in enumerate(row)] for row in cells]
