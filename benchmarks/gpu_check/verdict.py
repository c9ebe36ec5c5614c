"""What is expected of each check, and whether a figure is in its range."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from traces.printable import printable

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A check: `low` and `high` include their ends; `digits` of the figure that are shown."""

    check: str
    what: str
    low: float
    high: float
    unit: str = ""
    digits: int = 3

    def shown(self, value: float) -> str:
        """A figure with its unit."""
        text = f"{value:,.{self.digits}f}"
        return f"{text} {self.unit}".rstrip()

    @property
    def range(self) -> str:
        """What is expected, in words."""
        if self.low == self.high:
            return self.shown(self.low)
        if 0 < self.high - self.low < 1e-6:
            return f"{(self.low + self.high) / 2:g} ± {(self.high - self.low) / 2:.0e}"
        if self.high == float("inf"):
            return f"≥ {self.shown(self.low)}"
        if self.low == float("-inf"):
            return f"≤ {self.shown(self.high)}"
        return f"{self.low:,g} to {self.high:,g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What came of a check: a value, or None and why there is none. `note` is printed behind it either way."""

    check: str
    value: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table; `figure` and `expected` are texts with units."""

    part: str
    check: str
    what: str
    status: str
    value: float | None
    low: float
    high: float
    figure: str
    expected: str
    note: str


def judged(figures: Sequence[Figure], expected: Mapping[str, Expected]) -> list[Row]:
    """A row per figure, in the order of the table; a check without any figure is said not to have been run.

    A figure that is no number (NaN) fails: it is in no range.
    """
    known = {figure.check: figure for figure in figures}
    missing = set(known) - set(expected)
    if missing:
        raise KeyError(f"no expectation for {', '.join(sorted(missing))}")
    return [_row(entry, known.get(check) or Figure(check=check, value=None)) for check, entry in expected.items()]


def _row(entry: Expected, figure: Figure) -> Row:
    value = figure.value
    status = NOT_RUN if value is None else PASS if entry.low <= value <= entry.high else FAIL
    return Row(
        part=entry.check.partition(".")[0], check=entry.check, what=entry.what, status=status, value=value,
        low=entry.low, high=entry.high, figure="" if value is None else entry.shown(value), expected=entry.range,
        note=figure.note or ("" if value is not None else "what it needs was not measured"),
    )  # fmt: skip


def overridden(expected: Mapping[str, Expected], changes: Sequence[str]) -> dict[str, Expected]:
    """The table with ranges replaced by `CHECK=LOW:HIGH`; an empty end is open. Raises ValueError for anything else."""
    found = dict(expected)
    for text in changes:
        check, equals, ends = text.partition("=")
        low, colon, high = ends.partition(":")
        if check not in found:
            raise ValueError(f"--expect {text}: unknown check; known: {', '.join(found)}")
        try:
            ranges = (float(low) if low else float("-inf"), float(high) if high else float("inf"))
        except ValueError:
            ranges = (1.0, 0.0)
        if not (equals and colon) or not ranges[0] <= ranges[1]:
            raise ValueError(f"--expect {text}: give CHECK=LOW:HIGH")
        found[check] = replace(found[check], low=ranges[0], high=ranges[1])
    return found


def table(rows: Sequence[Row], titles: Mapping[str, str]) -> list[str]:
    """The table for a terminal, at most 100 columns wide; notes are wrapped below their line."""
    lines: list[str] = []
    for part, title in titles.items():
        own = [row for row in rows if row.part == part]
        if not own:
            continue
        lines += ["", title]
        reasons = {row.note for row in own if row.status == NOT_RUN}
        together = [row for row in own if row.status == NOT_RUN] if len(reasons) == 1 else []
        for row in own:
            lines += [] if row in together else _lines(row)
        if together:  # one reason for all of them: said once
            lines += _wrapped(
                f"  {NOT_RUN:<8}{', '.join(row.what for row in together)}: {together[0].note}", 10, first=0
            )
    return lines[1:]


def _lines(row: Row) -> list[str]:
    head = f"  {row.status:<8}{row.what:<44}"
    if row.value is not None:
        head += f"{row.figure:>18}   {row.expected}"
        return [head.rstrip(), *_wrapped(row.note, 10)]
    return _wrapped(f"{head.rstrip()}: {row.note}", 10, first=0)


def _wrapped(text: str, indent: int, first: int | None = None) -> list[str]:
    """`text` in lines of at most 100 columns; text of others may hold anything, and words of any length."""
    lines, start = [], indent if first is None else first
    rest = printable(text)
    while rest.strip():
        room = _WIDTH - start
        cut = rest.rfind(" ", room // 2, room) if len(rest) > room else len(rest)
        cut = cut if cut > 0 else room
        lines.append(" " * start + rest[:cut])
        rest, start = rest[cut:].lstrip(), indent
    return lines


def summary(rows: Sequence[Row]) -> str:
    """How many of each, in one line."""
    counts = {status: sum(row.status == status for row in rows) for status in (PASS, FAIL, NOT_RUN)}
    return f"{counts[PASS]} pass, {counts[FAIL]} fail, {counts[NOT_RUN]} not run"


def write_results(rows: Sequence[Row], facts: Mapping[str, Any], folder: Path, text: str) -> None:
    """`result.json` and `table.txt`; open ends of ranges are null in JSON."""
    table_rows = [
        {key: None if value in (float("inf"), float("-inf")) else value for key, value in asdict(row).items()}
        for row in rows
    ]
    result = {
        "gpu_check": 1,
        **facts,
        "failed": sum(row.status == FAIL for row in rows),
        "rows": table_rows,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
