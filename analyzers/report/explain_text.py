"""The terminal form of `explain`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from analyzers.explain import Explanation, Meaning
from analyzers.report.text import duration, percent, shown, terminal_width
from traces.printable import printable

_MOST_COLUMNS = 12  # of one name in different tables, of which each is a line


def explain_lines(found: Explanation, width: int | None = None) -> list[str]:
    """Meanings, then what the run has; `width` in columns, the terminal's where it is None."""
    width = min(width or terminal_width(), 100)
    if found.term is None:
        return _listed(found.meanings, width)
    lines: list[str] = []
    spelled = [item for item in found.meanings if item.group != "column"]
    for item in spelled:
        lines += [*_meaning(item, width), ""]
    columns = [item for item in found.meanings if item.group == "column"]
    for text, same in groupby(columns[:_MOST_COLUMNS], key=lambda item: item.text):
        lines += [*_broken(", ".join(item.name for item in same), width), *_wrapped(text, width), ""]
    if len(columns) > _MOST_COLUMNS:
        lines += [*_broken(f"({len(columns) - _MOST_COLUMNS} more tables have it; --json gives them)", width), ""]
    return [*lines, *_of_the_run(found, width)] if found.run_id is not None else lines[:-1]


def _meaning(item: Meaning, width: int) -> list[str]:
    lines = [*_broken(f"{item.name}  ({item.title})", width), *_wrapped(item.text, width)]
    if item.todo:
        lines += _wrapped(f"to do: {item.todo}", width)
    if item.see:
        lines += _wrapped(f"see {', '.join(item.see)}", width)
    return lines


def _listed(meanings: Iterable[Meaning], width: int) -> list[str]:
    """Every term under its group's title."""
    lines: list[str] = []
    for title, items in groupby(meanings, key=lambda item: item.title):
        lines += [*_broken(title, width), *_wrapped(", ".join(item.name for item in items), width), ""]
    return [*lines, *_broken("and every table and column: `stepscope explain steps.busy_ns`", width)]


def _of_the_run(found: Explanation, width: int) -> list[str]:
    where = f"in {shown(found.run_id, 60)}"
    lines = [line for row in found.findings or [] for line in _finding(row, where, width)]
    for row in found.checks or []:
        rank = "" if row["rank"] is None else f" rank {row['rank']}"
        lines += [
            *_broken(f"{where}{rank}: {shown(row['status'], 20)}", width),
            *_wrapped(shown(row["message"], 600), width),
        ]
    return lines or _broken(f"{where}: no finding and no check of that name", width)


def _finding(row: dict[str, Any], where: str, width: int) -> list[str]:
    lines = [
        *_broken(f"{where}: {shown(row['title'], 200)}", width),
        *_wrapped(f"why: {shown(row['cause'], 600)}", width),
    ]
    if row["device_ns"] is not None:
        lines += _wrapped(
            f"explains {duration(row['device_ns'])} of device time ({percent(row['share'])} of the window)", width
        )
    if row["predicted_gain"] is not None:
        gain = f"{percent(row['predicted_gain'])} ({percent(row['gain_low'])} to {percent(row['gain_high'])})"
        lines += _wrapped(f"predicted gain {gain} of the {shown(row['gain_of'], 20).replace('_', ' ')}", width)
    elif row["gain_high"] is not None:
        lines += _wrapped(
            f"gain not known, at most {percent(row['gain_high'])} of the {shown(row['gain_of'], 20).replace('_', ' ')}",
            width,
        )
    lines += _wrapped(f"to do: {shown(row['fix'], 600)}", width)
    return [
        *lines,
        "  the rows:",
        *(f"    {line}" for line in _broken(printable(row["evidence"] or ""), width - 4)),
    ]


def _wrapped(text: str, width: int) -> list[str]:
    return [f"  {line}" for line in _broken(text, width - 2)]


def _broken(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)
