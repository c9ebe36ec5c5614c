"""Terminal form of `compare`: what differs first, then the numbers, then what they cannot tell."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from analyzers.compare import Comparison, Pair
from analyzers.comparison.differences import Difference
from analyzers.comparison.judge import BETTER, CHANGED, SAME, UNJUDGED, WORSE, Row
from analyzers.comparison.metric import DETAIL, GROUPS
from analyzers.report.compare_words import TITLES, chance_words, change_words, number_words, passes_words, told
from analyzers.report.text import count, percent, shown

WIDTH = 98
_MOST_DIFFERENCES = 40


def compare_lines(result: Comparison, *, limit: int) -> list[str]:
    """A block per candidate, and the gate."""
    lines: list[str] = []
    for pair in result.pairs:
        lines += [*([""] if lines else []), *_pair(pair, limit)]
    if result.gate is not None:
        lines += ["", *_gate(result)]
    return lines


def _pair(pair: Pair, limit: int) -> list[str]:
    turns = ", taken in turns with those of base" if pair.in_turns else ""
    lines = [
        f"base       {shown(pair.base, 60)}{passes_words(pair.passes_base)}",
        f"candidate  {shown(pair.cand, 60)}{passes_words(pair.passes_cand)}{turns}",
        "",
        *_differences(pair.differences),
    ]
    if pair.not_recorded:
        lines += _wrapped(f"not recorded, so not compared: {', '.join(pair.not_recorded)}", "  ")
    for group in GROUPS:
        rows = [row for row in pair.rows if row.group == group]
        if rows:
            lines += ["", *_group(group, rows, limit, pair.confidence)]
    return [*lines, "", *_verdict(pair), *[line for text in pair.cautions for line in _wrapped(f"mind: {text}", "  ")]]


def _differences(items: Sequence[Difference]) -> list[str]:
    if not items:
        return ["what differs: nothing that the recordings tell of"]
    lines = ["what differs"]
    area = ""
    for item in items[:_MOST_DIFFERENCES]:
        lead = item.area if item.area != area else ""
        area = item.area
        lines.append(f"  {lead:<14} {shown(item.name, 34)}: {told(item.base)} → {told(item.cand)}")
        if item.note and (lead or item.area == "health"):
            lines += _wrapped(shown(item.note, 300), " " * 19)
    if len(items) > _MOST_DIFFERENCES:
        lines.append(f"  … and {len(items) - _MOST_DIFFERENCES} more: --json")
    return lines


def _group(group: str, rows: Sequence[Row], limit: int, confidence: float) -> list[str]:
    judged = [row for row in rows if row.verdict != UNJUDGED]
    kept = judged if group not in DETAIL else _worth(judged, limit)
    lines = []
    if kept:
        lines.append(
            f"{TITLES[group]:<41}{'base':>10}{'candidate':>11}{'change':>9}{f'{100 * confidence:.3g} % interval':>18}"
        )
        lines += [line for row in kept for line in _row(row)]
        if len(kept) < len(judged):
            lines.append(f"  … and {len(judged) - len(kept)} more without a difference: --limit, --json")
    else:
        lines.append(TITLES[group])
    for row in [row for row in rows if row.verdict == UNJUDGED][: max(limit, 4)]:
        sides = f"{number_words(row, row.base)} → {number_words(row, row.cand)}, "
        known = sides if None not in (row.base, row.cand) else ""
        lines += _wrapped(f"{shown(row.title, 44)}: {known}not judged, {shown(row.reason, 300)}", "  ")
    return lines


def _worth(rows: Sequence[Row], limit: int) -> list[Row]:
    """All that differ, then the first of the rest."""
    differ = [row for row in rows if row.verdict != SAME]
    rest = [row for row in rows if row.verdict == SAME][: max(0, limit - len(differ))]
    return [row for row in rows if row in differ or row in rest]


def _row(row: Row) -> list[str]:
    interval = f"{change_words(row, row.low)} … {change_words(row, row.high)}"
    sides = f"{number_words(row, row.base):>10}{number_words(row, row.cand):>11}"
    lead = f"  {shown(row.title, 38):<39}{sides}{change_words(row, row.change):>9}"
    word = row.verdict if row.verdict != SAME else "no diff."
    by = _wrapped(shown(row.note.partition(";")[0], 300), "    ") if row.note.startswith("by ") else []
    return [f"{lead}{interval:>18}  {word}", *by]


def _verdict(pair: Pair) -> list[str]:
    words = Counter(row.verdict for row in pair.rows)
    counts = [f"{count(words[word])} {word}" for word in (WORSE, BETTER, CHANGED, SAME) if words[word]]
    if not pair.judged:
        return ["no number could be judged"]
    text = f"{', '.join(counts)}, of {pair.judged} numbers judged. {chance_words(pair)}"
    lines = _wrapped(text, "")
    for word in (WORSE, BETTER, CHANGED):
        titles = [shown(row.title, 60) for row in pair.rows if row.verdict == word]
        lines += _wrapped(f"{word}: {', '.join(titles[:8])}{' …' if len(titles) > 8 else ''}", "  ") if titles else []
    return lines


def _gate(result: Comparison) -> list[str]:
    allowed = percent(result.gate)
    if not result.tripped:
        return [f"gate {allowed}: not tripped (nothing is worse by more than that beyond its interval)"]
    return [
        f"gate {allowed}: tripped",
        *[line for text in result.tripped[:20] for line in _wrapped(shown(text, 200), "  ")],
    ]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=True
    ) or [indent]
