"""A comparison's numbers and groups in words, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyzers.compare import Pair
from analyzers.comparison.judge import Row
from analyzers.report.text import DASH, duration, percent, shown

TITLES = {
    "latency": "latency, as the client saw it", "throughput": "throughput", "steps": "steps of like size", "phases": "phases, per token",
    "categories": "kernel categories, per step of like size", "kernels": "kernels, per step of like size",
    "idle": "idle time, of the window", "reuse": "prompts, of their tokens",
}  # fmt: skip


def told(value: Any, limit: int = 22) -> str:
    """A side of a difference."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.4g}" if abs(value) >= 1e9 or value != int(value) else f"{value:,.0f}"
    return shown(str(value), limit)


def number_words(row: Row, value: float | None) -> str:
    """A side of a row, in the unit that a person reads."""
    if row.unit == "ns":
        return duration(value)
    if row.unit == "share":
        return percent(value)
    return DASH if value is None else f"{value:,.1f}"


def change_words(row: Row, value: float | None) -> str:
    """Percent of the base; of shares, percentage points."""
    if value is None:
        return DASH
    if row.unit != "share" and value >= 9.995:
        return f"{1 + value:,.0f}×" if value < 1e5 else "> 10⁵×"
    unit = "pp" if row.unit == "share" else "%"
    size = f"{100 * value:+.1f}" if abs(value) < 0.0995 else f"{100 * value:+.0f}"
    return f"{'0' if float(size) == 0 else size}{unit}"


def mark_of(row: Row) -> str:
    """The key of palette.VERDICT: the verdict, or `gate` of one that trips it."""
    return "gate" if row.gated else row.verdict


def named(row: Row) -> str:
    """A row's title where its group does not stand beside it."""
    kind = {"categories": "category ", "kernels": "kernel "}.get(row.group, "")
    return f"{kind}{row.title}"


def passes_words(names: Sequence[str]) -> str:
    """The passes of a side behind its name; nothing where it has none."""
    if not names:
        return ""
    listed = ", ".join(shown(name, 16) for name in names[:6]) + (" …" if len(names) > 6 else "")
    return f"  ({'pass' if len(names) == 1 else f'{len(names)} passes'} {listed})"


def chance_words(pair: Pair) -> str:
    """What the confidence means."""
    share = percent(1 - pair.confidence, 0 if pair.confidence < 0.99 else 2)
    return (
        "The intervals are wide enough for all of them together: "
        f"where nothing differs, the chance of any verdict is {share}."
    )
